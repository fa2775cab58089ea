"""Commands of the command line, with their arguments and options."""

from collections.abc import Iterator
from enum import Enum
from typing import Any

from typer.main import get_command

from penstock.cli.app import app


def lines() -> list[str]:
    """Return a line for each command, and one for each of its arguments and options."""
    return sorted(line for name, command in _commands() for line in _described(name, command))


def with_json() -> set[str]:
    """Return the names of the commands that have `--json`."""
    return {name for name, command in _commands() if any("--json" in one.opts for one in command.params)}


def _commands() -> Iterator[tuple[str, Any]]:
    """Yield every command and subcommand with its full name."""
    return _with_inner("penstock", get_command(app))


def _with_inner(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield name, command
    for inner_name, inner in getattr(command, "commands", {}).items():
        yield from _with_inner(f"{name} {inner_name}", inner)


def _described(name: str, command: Any) -> Iterator[str]:
    context = command.make_context(name, [], resilient_parsing=True)
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    yield name
    for one in (one for one in command.params if not getattr(one, "hidden", False)):
        title = f"argument {arguments.index(one) + 1}" if one in arguments else ", ".join(one.opts + one.secondary_opts)
        yield f"{name} {title} {one.display_type(context)}{_how_often(one)}{_default(one)}"


def _how_often(parameter: Any) -> str:
    repeated = parameter.nargs == -1 or getattr(parameter, "multiple", False)
    return f"{' required' if parameter.required else ''}{' repeatable' if repeated else ''}"


def _default(parameter: Any) -> str:
    value = parameter.default.value if isinstance(parameter.default, Enum) else parameter.default
    return "" if value is None or value is False or value == "" else f" = {value}"
