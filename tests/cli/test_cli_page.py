"""The command line's page in the docs: it has every command and every option that there is."""

from pathlib import Path

from typer.main import get_command

from penstock.cli.app import app

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()


def test_every_command_has_a_section() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    assert [name for name in commands if f"\n## penstock {name}\n" not in PAGE] == []


def test_every_option_is_on_the_page() -> None:
    commands = get_command(app).commands.values()  # type: ignore[attr-defined]
    options = {option for command in commands for parameter in command.params for option in parameter.opts}
    assert [option for option in sorted(options) if option.startswith("-") and f"`{option}" not in PAGE] == []
