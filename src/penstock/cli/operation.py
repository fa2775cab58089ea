"""An operation on many events, as a person meets it: what it would touch, the question, the progress, the answer."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from penstock.admin.wording import count
from penstock.cli import output
from penstock.cli.events import table
from penstock.cli.failure import FAILURE

if TYPE_CHECKING:
    from penstock.admin.service import Preview

SHOWN_GROUPS = 20


@dataclass(frozen=True, slots=True)
class Operation:
    """What replay, purge and cancel have in common: the preview, the question, the progress, the answer."""

    verb: str
    done: str
    dry_run: bool
    yes: bool
    json: bool

    def carry_out(self, preview: "Preview", work: Callable[[output.Update], int]) -> None:
        """Show it, or ask if somebody is there to ask, and do it."""
        if self.dry_run:
            self._show(preview)
            return
        if preview.total and not self.yes and sys.stdin.isatty():
            self._ask(preview)
        with output.progress(f"{self.verb}: {preview.total:,} events", preview.total) as update:
            touched = work(update) if preview.total else 0
        if self.json:
            output.write_json({self.done: touched})
        else:
            output.write(f"{count(touched, 'event')} {self.done}")

    def _show(self, preview: "Preview") -> None:
        if self.json:
            output.write_json(preview.as_json())
            return
        output.write("\n".join([f"would {self.verb} {count(preview.total, 'event')}", *_groups(preview)]))
        if preview.examples:
            output.write("among them:")
            output.show(table(preview.examples))

    def _ask(self, preview: "Preview") -> None:
        for line in _groups(preview):
            output.note(line)
        if not output.confirmed(f"{self.verb} {count(preview.total, 'event')}?"):
            output.note("nothing was done")
            raise typer.Exit(FAILURE)


def _groups(preview: "Preview") -> list[str]:
    """How many of which kind, a line each."""
    lines = [
        output.clean_line(f"  {group.count:>9,}  {group.state.lower():<9}  {group.event_type}, queue {group.queue}")
        for group in preview.groups[:SHOWN_GROUPS]
    ]
    left = len(preview.groups) - len(lines)
    return [*lines, f"  and {count(left, 'more kind')}"] if left > 0 else lines
