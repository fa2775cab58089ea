"""An operation on many events, as a person meets it: what it would touch, the question, the progress, the answer."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from penstock.admin.text import count
from penstock.cli.commands.events import table
from penstock.cli.terminal import output
from penstock.cli.terminal.exit import FAILURE
from penstock.model.errors import UsageError

if TYPE_CHECKING:
    from penstock.admin.service import Preview

SHOWN_GROUPS = 20


@dataclass(frozen=True, slots=True)
class Operation:
    """What replay, purge, cancel and redrive have in common: the preview, the question, the progress, the answer."""

    verb: str
    done: str
    dry_run: bool
    yes: bool
    json: bool
    unasked: int = 0
    """So many events need no question."""
    insists: bool = False
    """Where nobody can be asked, it is refused without --yes."""

    def carry_out(
        self, preview: "Preview", work: Callable[[output.Update], int], also: Mapping[str, Any] | None = None
    ) -> None:
        """Show it, or ask if somebody is there to ask, and do it. `also` goes into the JSON of either."""
        if self.dry_run:
            self._show(preview, also or {})
            return
        if preview.total > self.unasked and not self.yes:
            self._make_sure(preview)
        touched = self._do(preview.total, work) if preview.total else 0
        if self.json:
            output.write_json({self.done: touched, **(also or {})})
        else:
            output.write(f"{count(touched, 'event')} {self.done}")

    def _make_sure(self, preview: "Preview") -> None:
        if sys.stdin.isatty():
            self._ask(preview)
        elif self.insists:
            raise UsageError(
                f"{self.verb} would touch {count(preview.total, 'event')}, and off a terminal it needs --yes for that; "
                "--dry-run shows what it would do"
            )

    def _do(self, total: int, work: Callable[[output.Update], int]) -> int:
        """In batches, each done or not: whoever leaves in between is told how far it came."""
        so_far = 0
        try:
            with output.progress(f"{self.verb}: {total:,} events", total) as update:

                def heard(done: int) -> None:
                    nonlocal so_far
                    so_far = done
                    update(done)

                return work(heard)
        except KeyboardInterrupt:
            output.note(f"stopped: {count(so_far, 'event')} {self.done}, the others are as they were")
            raise

    def _show(self, preview: "Preview", also: Mapping[str, Any]) -> None:
        if self.json:
            output.write_json({**preview.as_json(), **also})
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


def require_consent(verb: str, given: bool) -> None:
    """Refuse what deletes where nobody has agreed to it and nobody can be asked, before it looks at anything."""
    if not given and not sys.stdin.isatty():
        raise UsageError(
            f"{verb} deletes for good, and off a terminal it needs --yes; --dry-run shows what it would do"
        )
