"""Watches the Python files of a worker, for its restart during development."""

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from penstock.config.extras import needs_extra
from penstock.config.import_path import search_working_folder
from penstock.model.errors import PenstockError, UsageError
from penstock.worker.processes.launch_spec import WORKER

LOOK_MILLISECONDS = 100


def code_changes(worker: str) -> Iterator[frozenset[str]]:
    """Yield the files that changed below the working folder and in the worker's package, several times a second.

    Most yields are empty; from the first one on, no change is missed.
    """
    with needs_extra("--reload", "worker"):
        import watchfiles  # noqa: F401
    return _changes(watched_folders(worker))


def _changes(folders: list[Path]) -> Iterator[frozenset[str]]:
    from watchfiles import PythonFilter, watch

    is_code = PythonFilter()
    looks = watch(
        *folders,
        watch_filter=None,  # with a filter, it would yield nothing while only other files change
        debounce=LOOK_MILLISECONDS,
        rust_timeout=LOOK_MILLISECONDS,
        yield_on_timeout=True,
        raise_interrupt=False,
        ignore_permission_denied=True,
    )
    try:
        for changes in looks:
            yield frozenset(os.path.relpath(path) for change, path in changes if is_code(change, path))
    except (OSError, RuntimeError) as error:  # such as the system's limit of watched files
        raise PenstockError(f"{', '.join(map(str, folders))} can't be watched: {error}") from error


def watched_folders(worker: str) -> list[Path]:
    """Return the folders with the worker's code. Does not import the code, which may have an error to correct."""
    search_working_folder()
    top = WORKER.module_of(worker).partition(".")[0]
    spec = find_spec(top)
    if spec is None:
        raise UsageError(f"there is no module {top} in {os.getcwd()} or on Python's path")
    places = spec.submodule_search_locations or [os.path.dirname(spec.origin or "")]
    here = Path.cwd()
    return [here, *(folder for folder in map(Path, places) if not folder.absolute().is_relative_to(here))]
