"""Watching a worker's Python files, for its restart when they change."""

import os
import threading
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from penstock.config import needs_extra
from penstock.errors import UsageError
from penstock.worker.loading import module_of, search_working_folder

# How often the watch comes back by itself: it has to do so once to be known to have begun.
LOOK_MILLISECONDS = 200
START_SECONDS = 30.0


class Watcher:
    """Tells of changed Python files below the working folder and in the package that the worker is in."""

    def __init__(self, worker: str) -> None:
        with needs_extra("--reload", "worker"):
            import watchfiles  # noqa: F401
        self.folders = watched_folders(worker)

    def start(self, tell: Callable[[frozenset[str]], None]) -> None:
        """Returns once changes are seen. They are told from a thread."""
        watching = threading.Event()
        threading.Thread(target=self._watch, args=[tell, watching], name="penstock-watch", daemon=True).start()
        if not watching.wait(START_SECONDS):
            raise UsageError(f"the folders {', '.join(map(str, self.folders))} can't be watched; start it elsewhere")

    def _watch(self, tell: Callable[[frozenset[str]], None], watching: threading.Event) -> None:
        from watchfiles import PythonFilter, watch

        looks = watch(
            *self.folders,
            watch_filter=PythonFilter(),
            rust_timeout=LOOK_MILLISECONDS,
            yield_on_timeout=True,
            raise_interrupt=False,
            ignore_permission_denied=True,
        )
        for changes in looks:
            watching.set()
            if changes:
                tell(frozenset(_short(path) for _, path in changes))


def watched_folders(worker: str) -> list[Path]:
    """Where the code is. The module itself is found without being run: what is wrong with it may be about to change."""
    search_working_folder()
    top = module_of(worker).partition(".")[0]
    spec = find_spec(top)
    if spec is None:
        raise UsageError(f"there is no module {top} in {os.getcwd()} or on Python's path")
    places = [*(spec.submodule_search_locations or ()), *([spec.origin] if spec.has_location and spec.origin else [])]
    folders = {Path(place) if Path(place).is_dir() else Path(place).parent for place in places}
    here = Path.cwd()
    return [here, *sorted(folder for folder in folders if not folder.is_relative_to(here))]


def _short(path: str) -> str:
    found = Path(path)
    return str(found.relative_to(Path.cwd())) if found.is_relative_to(Path.cwd()) else path
