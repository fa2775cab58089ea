"""Public names of the packages that users import, with their signatures; of `penstock.testing`, the names only."""

import ast
import inspect
from collections.abc import Iterator
from enum import Enum
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

PACKAGES = ("penstock", "penstock.jobs", "penstock.pipeline", "penstock.streams", "penstock.worker")
TESTING = "penstock.testing"
SHOWN = (bool, int, float, str, bytes, tuple, type(None))


class Default:
    """Default of a parameter for display. The texts of objects other than plain values differ between machines."""

    def __init__(self, value: Any) -> None:
        self._value = value.value if isinstance(value, Enum) else value

    def __repr__(self) -> str:
        return repr(self._value) if isinstance(self._value, SHOWN) else "..."


def lines() -> list[str]:
    """Return a line for each name, and one for each public member of a class."""
    exported = {f"{package}.{name}": value for package in PACKAGES for name, value in _exports(package)}
    classes = {value: name for name, value in reversed(exported.items()) if inspect.isclass(value)}
    return sorted(
        {
            *(f"{name}{_call(value)}" for name, value in exported.items()),
            *(f"{name}.{member}" for kind, name in classes.items() for member in _members(kind)),
            *_of_testing(),
        }
    )


def _exports(package: str) -> Iterator[tuple[str, Any]]:
    module = import_module(package)
    return ((name, getattr(module, name)) for name in module.__all__)


def _members(kind: type) -> Iterator[str]:
    """Yield the members of an enumeration, and the attributes of Penstock's classes that are not parameters."""
    choices = {one.name: one.value for one in kind} if issubclass(kind, Enum) else {}
    yield from (f"{name} = {value!r}" for name, value in choices.items())
    known = {*choices, *(() if choices or issubclass(kind, BaseException) else inspect.signature(kind).parameters)}
    for name in {name for base in kind.__mro__ if _ours(base) for name in vars(base)} - known:
        if not name.startswith("_"):
            yield f"{name}{_call(inspect.getattr_static(kind, name))}"


def _ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "penstock"


def _call(value: Any) -> str:
    """Return the signature without annotations; an empty text for enumerations, exceptions and values."""
    called = value.__func__ if isinstance(value, classmethod | staticmethod) else value
    if inspect.isclass(called) and issubclass(called, Enum | BaseException):
        return ""
    if not (inspect.isclass(called) or inspect.isfunction(called)):
        return ""
    signature = inspect.signature(called)
    parameters = [_plain(parameter) for parameter in signature.parameters.values()]
    return str(signature.replace(parameters=parameters, return_annotation=signature.empty))


def _plain(parameter: inspect.Parameter) -> inspect.Parameter:
    default = parameter.default if parameter.default is parameter.empty else Default(parameter.default)
    return parameter.replace(annotation=parameter.empty, default=default)


def _of_testing() -> Iterator[str]:
    """Yield the names that each module of `penstock.testing` defines or exports, without importing the modules."""
    package = import_module(TESTING)
    modules = [TESTING, *(found.name for found in walk_packages(package.__path__, f"{TESTING}."))]
    for module in modules:
        yield module
        yield from (f"{module}.{name}" for name in _defined(module) if not name.startswith("_"))


def _defined(module: str) -> Iterator[str]:
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    for node in ast.parse(Path(spec.origin).read_text()).body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                yield from ast.literal_eval(value)
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                yield name
