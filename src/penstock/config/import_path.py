"""Import of objects named `module:name`, such as a worker, with one-line errors."""

import importlib
import inspect
import os
import sys
import sysconfig
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.model.errors import PenstockError, UsageError

# Paths of libraries and of Penstock. An import error shows the last traceback frame outside these paths.
_LIBRARIES = ("stdlib", "platstdlib", "purelib", "platlib")
_NOT_THEIRS = (*(sysconfig.get_path(name) for name in _LIBRARIES), str(Path(__file__).parents[1]))


@dataclass(frozen=True, slots=True)
class ImportTarget:
    """Kind of object that a name must refer to."""

    kind: str
    """Description in error messages."""
    type: Any
    """Second argument of `isinstance`."""
    example: str
    """Example of a valid name."""

    def load(self, name: str) -> Any:
        """Import and return the object named `module:name`."""
        module_name = self.module_of(name)
        found: Any = _import(module_name)
        attribute = name.partition(":")[2]
        for part in attribute.split("."):
            try:
                found = getattr(found, part)
            except AttributeError:
                raise UsageError(f"module {module_name!r} has no {attribute!r}{self._there(module_name)}") from None
        if not isinstance(found, self.type):
            kind = f"{name!r} must be a {self.kind}, got {type(found).__name__}"
            raise UsageError(f"{kind}{self._there(module_name)}")
        return found

    def module_of(self, name: str) -> str:
        """Return the module in `module:name`; raise `UsageError` if the name is malformed."""
        module, colon, attribute = name.partition(":")
        parts = [*module.split("."), *attribute.split(".")]
        if not colon or not all(part.isidentifier() for part in parts):
            raise UsageError(f"invalid {self.kind} {name!r}; expected a name such as {self.example}")
        return module

    def _there(self, module_name: str) -> str:
        """Return an error clause with the objects of this kind that the module itself defines; empty if none."""
        values = vars(sys.modules[module_name]).items()
        fitting = {name: value for name, value in values if isinstance(value, self.type) and name[0] != "_"}
        there = sorted(name for name, value in fitting.items() if not _is_from_elsewhere(value, module_name))
        return f"; existing {self.kind}s: {', '.join(f'{module_name}:{name}' for name in there)}" if there else ""


def search_working_folder() -> None:
    """Add the working folder to Python's path, as `python -m` does, so that the user's modules can be imported."""
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)


def _is_from_elsewhere(value: Any, module_name: str) -> bool:
    return (inspect.isroutine(value) or inspect.isclass(value)) and value.__module__ != module_name


def _import(module_name: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            raise UsageError(f"module {error.name!r} not found in {os.getcwd()} or on the Python path") from error
        raise UsageError(_import_failure(module_name, error)) from error
    except (Exception, SystemExit) as error:  # the user's module may raise any exception
        raise UsageError(_import_failure(module_name, error)) from error


def _import_failure(module_name: str, error: BaseException) -> str:
    said = str(error) if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}"
    if isinstance(error, SyntaxError) and error.filename:
        said = f"{type(error).__name__}: {error.msg}"
        return f"cannot import {module_name!r}: {error.filename}, line {error.lineno}: {said}"
    return f"cannot import {module_name!r}: {_where(error)}: {said}"


def _where(error: BaseException) -> str:
    """Return file and line of the last traceback frame in the user's code, else of the last frame."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    theirs = [frame for frame in frames if not frame.filename.startswith(_NOT_THEIRS)]
    shown = (theirs or frames)[-1]
    return f"{shown.filename}, line {shown.lineno}"
