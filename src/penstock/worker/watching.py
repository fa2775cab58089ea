"""Watching a worker's Python files, for its restart when they change."""

import os
import threading
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from penstock import telemetry
from penstock.config import needs_extra
from penstock.errors import PenstockError, UsageError
from penstock.loading import search_working_folder
from penstock.worker.loading import WORKER

# How often the watch comes back by itself: it has to do so once to be known to have begun.
LOOK_MILLISECONDS = 200
START_SECONDS = 30.0


class Watcher:
    """Tells of changed Python files below the working folder and in the package that the worker is in."""

    def __init__(self, worker: str) -> None:
        with needs_extra("--reload", "worker"):
            import watchfiles  # noqa: F401
        self.folders = watched_folders(worker)
        self._begun = threading.Event()
        self._failure: str | None = None

    def start(self, tell: Callable[[frozenset[str]], None]) -> None:
        """Returns once changes are seen. They are told from a thread."""
        threading.Thread(target=self._run, args=[tell], name="penstock-watch", daemon=True).start()
        begun = self._begun.wait(START_SECONDS)
        if self._failure is not None or not begun:
            folders = ", ".join(map(str, self.folders))
            raise PenstockError(f"{folders} can't be watched: {self._failure or 'it takes too long'}")

    def _run(self, tell: Callable[[frozenset[str]], None]) -> None:
        try:
            self._watch(tell)
        except Exception as error:  # such as a system's limit on what can be watched
            self._failure = str(error)
            telemetry.warn("changes are not seen any more", error=error)
            self._begun.set()

    def _watch(self, tell: Callable[[frozenset[str]], None]) -> None:
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
            self._begun.set()
            if changes:
                tell(frozenset(_short(path) for _, path in changes))


def watched_folders(worker: str) -> list[Path]:
    """Where the code is. The module itself is found without being run: what is wrong with it may be about to change."""
    search_working_folder()
    top = WORKER.module_of(worker).partition(".")[0]
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
