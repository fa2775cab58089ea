"""The command-line reference page in the docs covers every command and option."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from penstock.cli.app import app

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text()


def test_every_command_has_section() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    assert [name for name in commands if f"\n## penstock {name}\n" not in PAGE] == []


def everything(commands: Iterable[Any]) -> Iterator[Any]:
    """Yield the commands and their subcommands."""
    for command in commands:
        yield command
        yield from everything(getattr(command, "commands", {}).values())


def test_page_lists_every_subcommand() -> None:
    commands = get_command(app).commands.items()  # type: ignore[attr-defined]
    inside = [f"penstock {group} {name}" for group, command in commands for name in getattr(command, "commands", {})]
    assert [name for name in inside if f"`{name}" not in PAGE] == []


def test_page_lists_every_option() -> None:
    commands = everything(get_command(app).commands.values())  # type: ignore[attr-defined]
    parameters = [one for command in commands for one in command.params if not getattr(one, "hidden", False)]
    options = {option for parameter in parameters for option in parameter.opts}
    assert [option for option in sorted(options) if option.startswith("-") and f"`{option}" not in PAGE] == []
