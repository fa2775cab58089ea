"""Zip files of Penstock and of the user's code for a cluster's executors, so that neither is installed on the nodes.

Driver and executors run the same code. Installed packages, such as the client libraries of the store and the brokers,
have compiled parts and are not shipped. They must be present on the nodes: in the nodes' Python environment, or in an
environment that Spark unpacks there (docs/guides/spark.md).
"""

import atexit
import shutil
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGE = Path(__file__).parents[2]
_NOT_THEIRS = ("__main__", "penstock")
_INSTALLED = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib"))


@cache
def parcel() -> Path:
    """Return a zip file of this package. It exists as long as this process: executors fetch it whenever they start."""
    return _zip(_lasting_folder() / "penstock.zip", [PACKAGE])


def parcel_of(functions: Iterable[Callable[..., Any]]) -> Path | None:
    """Return a zip file with the functions' modules or packages, and the imported modules from the same folders.

    None if all of them are installed or part of the running script: Spark pickles the script's functions by value.
    """
    places = {place for function in functions for place in _places(_module_of(function)) if not _is_installed(place)}
    beside = {place.parent for place in places}
    imported = [module for name, module in dict(sys.modules).items() if "." not in name and name not in _NOT_THEIRS]
    places |= {place for module in imported for place in _places(module) if place.parent in beside}
    return _zip(_lasting_folder() / "streams.zip", sorted(places)) if places else None


def _module_of(function: Any) -> ModuleType | None:
    """Return the top-level module or package of a function; None for the running script and Penstock itself."""
    while isinstance(function, partial):
        function = function.func
    name = str(getattr(function, "__module__", "")).partition(".")[0]
    return None if name in _NOT_THEIRS else sys.modules.get(name)


def _places(module: ModuleType | None) -> list[Path]:
    """Return the folders of a package, or the file of a module."""
    if (folders := getattr(module, "__path__", None)) is not None:
        return [Path(folder).resolve() for folder in folders]
    file = getattr(module, "__file__", None)
    return [Path(file).resolve()] if file and file.endswith(".py") else []


def _is_installed(place: Path) -> bool:
    return any(place.is_relative_to(folder.resolve()) for folder in _INSTALLED)


def _lasting_folder() -> Path:
    folder = tempfile.mkdtemp(prefix="penstock-ship-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _zip(path: Path, places: Iterable[Path]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for place in places:
            for file in _files(place):
                archive.write(file, file.relative_to(place.parent))
    return path


def _files(place: Path) -> Iterator[Path]:
    if place.is_file():
        yield place
        return
    for file in sorted(place.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            yield file
