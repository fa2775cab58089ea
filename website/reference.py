"""Reference pages that are generated from the code: the Python API and the commands."""

import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType

from tests.surface.names import PACKAGES, TESTING
from website.pages import Entry

SUMMARY = re.compile(r"^(\* `[a-z][a-z-]*`): .*$", re.MULTILINE)


def write_reference(folder: Path) -> list[Entry]:
    """Write the generated pages to the folder of pages, and return their places in the navigation."""
    (folder / "reference" / "api").mkdir()
    entries = [Entry("Commands and options", "reference/commands.md", "help of every command, from the code")]
    (folder / entries[0].path).write_text(_commands())
    for package in [*PACKAGES, TESTING]:
        module = import_module(package)
        summary = (module.__doc__ or "").partition("\n")[0].partition(". ")[0].rstrip(".")
        entries.append(Entry(package, f"reference/api/{package}.md", summary))
        (folder / entries[-1].path).write_text("\n".join(_package(module)))
    return entries


def _commands() -> str:
    """Return the help of all commands as Markdown, without the summaries in lists, which Typer truncates."""
    command = [sys.executable, "-m", "typer", "penstock.cli.app", "utils", "docs", "--name", "penstock"]
    text = subprocess.run(
        [*command, "--title", "Commands and options"], check=True, capture_output=True, text=True
    ).stdout
    return SUMMARY.sub(r"\1", text.replace("&#x27;", "'"))


def _package(module: ModuleType) -> Iterator[str]:
    """Yield the lines of a package's page. Names that `penstock` exports as well are described on its page only."""
    yield f"# {module.__name__}\n\n{inspect.getdoc(module)}\n"
    if module.__name__ == TESTING:
        for found in iter_modules(module.__path__):
            inner = import_module(f"{TESTING}.{found.name}")
            yield f"## {inner.__name__}\n\n{inspect.getdoc(inner)}\n"
            yield from _directives(inner, _public(inner))
        return
    top = {} if module.__name__ == "penstock" else vars(import_module("penstock"))["__all__"]
    names = module.__all__
    if shared := [name for name in names if name in top]:
        links = ", ".join(f"[`{name}`](#penstock.{name})" for name in shared)
        yield f"Also exported by `penstock`, and described there: {links}.\n"
    yield from _directives(module, [name for name in names if name not in top])


def _public(module: ModuleType) -> list[str]:
    """Return the names that a module exports, or else defines with a docstring."""
    defined = [
        name
        for name, value in vars(module).items()
        if (inspect.isclass(value) or inspect.isfunction(value)) and value.__module__ == module.__name__
    ]
    return list(getattr(module, "__all__", [name for name in defined if not name.startswith("_")]))


def _directives(module: ModuleType, names: list[str]) -> Iterator[str]:
    yield "```{eval-rst}"
    for name in names:
        yield f".. {_directive(getattr(module, name))}:: {module.__name__}.{name}"
    yield "```\n"


def _directive(value: object) -> str:
    if inspect.isclass(value):
        return "autoexception" if issubclass(value, BaseException) else "autoclass"
    return "autofunction" if inspect.isroutine(value) else "autodata"
