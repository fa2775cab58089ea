"""Finding the worker that `module:name` names, and telling in one line why it can't be had."""

import importlib
import os
import sys
import sysconfig
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError, UsageError
from penstock.worker.worker import Worker

# Where a mistake of the user's is not to be looked for: the line to show is the last one outside of these.
_LIBRARIES = ("stdlib", "platstdlib", "purelib", "platlib")
_NOT_THEIRS = (*(sysconfig.get_path(name) for name in _LIBRARIES), str(Path(__file__).parents[1]))


@dataclass(frozen=True, slots=True)
class Order:
    """What to run: a worker, and what is to be otherwise than it says itself."""

    worker: str
    """As module:name."""
    queues: Sequence[str] | None = None
    store: str | None = None
    graceful_timeout: float | None = None

    def load(self) -> Worker:
        """The worker, ready to run."""
        worker = load_worker(self.worker)
        if self.store is not None:
            worker.url = self.store
        if self.graceful_timeout is not None:
            worker.graceful_timeout = self.graceful_timeout
        return worker


def module_of(name: str) -> str:
    """The module in `module:name`."""
    module, colon, attribute = name.partition(":")
    parts = [*module.split("."), *attribute.split(".")]
    if not colon or not all(part.isidentifier() for part in parts):
        raise UsageError(f"{name!r} names no worker; one is named like shop.workers:worker")
    return module


def load_worker(name: str) -> Worker:
    """The worker that `module:name` names. The working folder is searched first, as `python -m` does."""
    module_name = module_of(name)
    search_working_folder()
    found: Any = _import(module_name)
    attribute = name.partition(":")[2]
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise UsageError(f"the module {module_name} has no {attribute}{_suggestion(module_name)}") from None
    if not isinstance(found, Worker):
        raise UsageError(f"{name} is not a worker but of type {type(found).__name__}{_suggestion(module_name)}")
    return found


def search_working_folder() -> None:
    """Put the working folder on Python's path, where modules of one's own are at hand."""
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)


def _import(module_name: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            raise UsageError(f"there is no module {error.name} in {os.getcwd()} or on Python's path") from error
        raise UsageError(_told(module_name, error)) from error
    except (Exception, SystemExit) as error:  # a module of the user's may fail in any way
        raise UsageError(_told(module_name, error)) from error


def _told(module_name: str, error: BaseException) -> str:
    said = str(error) if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}"
    if isinstance(error, SyntaxError) and error.filename:
        said = f"{type(error).__name__}: {error.msg}"
        return f"{module_name} can't be imported: {error.filename}, line {error.lineno}: {said}"
    return f"{module_name} can't be imported: {_where(error)}: {said}"


def _where(error: BaseException) -> str:
    """The file and line of the user's that it comes from; where there is none, as in an installed package, the last."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    theirs = [frame for frame in frames if not frame.filename.startswith(_NOT_THEIRS)]
    shown = (theirs or frames)[-1]
    return f"{shown.filename}, line {shown.lineno}"


def _suggestion(module_name: str) -> str:
    """The workers that the module does have."""
    values = vars(sys.modules[module_name]).items()
    there = sorted(name for name, value in values if isinstance(value, Worker))
    return f"; it has {', '.join(f'{module_name}:{name}' for name in there)}" if there else ""
