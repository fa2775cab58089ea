"""`penstock doctor`: checks of the installation and the store."""

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from penstock.cli.terminal import output
from penstock.cli.terminal.exit import FAILURE
from penstock.cli.terminal.options import Call, takes_options

if TYPE_CHECKING:
    from rich.console import RenderableType

    from penstock.admin.doctor import Check

MARKS = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "red")}


@takes_options
def doctor(call: Call) -> None:
    """Check Python, Spark, Java and the store, and print a remedy for each problem."""
    from penstock.admin.doctor import healthy

    with call.opened() as admin, output.waiting("checking"):
        checks = admin.doctor()
    well = healthy(checks)
    if call.json:
        output.write_json({"healthy": well, "checks": [asdict(check) for check in checks]})
    else:
        output.show(_table(checks))
    if not well:
        raise typer.Exit(FAILURE)


def _table(checks: "list[Check]") -> "RenderableType":
    from rich.text import Text

    rows = []
    for check in checks:
        mark, style = MARKS[check.level]
        rows.append((Text(mark, style=style), Text(check.level, style=style), check.name, check.detail))
    return output.grid(rows)
