"""Bulk operations on events at the terminal: preview, confirmation, progress, result."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.admin.text import count
from penstock.cli.commands.events import table
from penstock.cli.terminal import output
from penstock.cli.terminal.options import Call, DryRunOption, YesOption
from penstock.model.errors import UsageError

if TYPE_CHECKING:
    from penstock.admin.queries import Preview


@dataclass(frozen=True, slots=True)
class Consent:
    """The --dry-run and --yes options of an operation."""

    dry_run: DryRunOption = False
    yes: YesOption = False

    def require(self, verb: str) -> None:
        """Refuse a deletion without --yes if standard input is not a terminal, before any query runs."""
        if not self.dry_run and not self.yes and not sys.stdin.isatty():
            raise UsageError(f"{verb} requires --yes if standard input is not a terminal; use --dry-run for a preview")


@dataclass(frozen=True, slots=True)
class Operation:
    """Steps that replay, purge, cancel and redrive share: preview, confirmation, progress, result."""

    verb: str
    done: str
    call: Call
    consent: Consent
    unasked: int = 0
    """Largest number of events that needs no confirmation."""
    insists: bool = False
    """True if the operation requires --yes when standard input is not a terminal."""

    def carry_out(
        self, preview: "Preview", work: Callable[[output.Update], int], also: Mapping[str, Any] | None = None
    ) -> None:
        """Show the preview, or ask for confirmation on a terminal and run `work`. Both JSON results include `also`."""
        if self.consent.dry_run:
            self._show(preview, also or {})
            return
        if preview.total > self.unasked and not self.consent.yes:
            self._make_sure(preview)
        touched = self._do(preview.total, work) if preview.total else 0
        self.call.answer({self.done: touched, **(also or {})}, f"{count(touched, 'event')} {self.done}")

    def _make_sure(self, preview: "Preview") -> None:
        if sys.stdin.isatty():
            for line in _groups(preview):
                output.note(line)
            output.require_yes(f"{self.verb} {count(preview.total, 'event')}?")
        elif self.insists:
            raise UsageError(
                f"{self.verb} of {count(preview.total, 'event')} requires --yes if standard input is not a terminal; "
                "use --dry-run for a preview"
            )

    def _do(self, total: int, work: Callable[[output.Update], int]) -> int:
        """Run `work` with a progress bar; after Ctrl-C, report the number of events in finished batches."""
        so_far = 0
        try:
            with output.progress(f"{self.verb}: {total:,} events", total) as update:

                def heard(done: int) -> None:
                    nonlocal so_far
                    so_far = done
                    update(done)

                return work(heard)
        except KeyboardInterrupt:
            output.note(f"stopped: {count(so_far, 'event')} {self.done}; the remaining events are unchanged")
            raise

    def _show(self, preview: "Preview", also: Mapping[str, Any]) -> None:
        if self.call.json:
            output.write_json({**preview.as_json(), **also})
            return
        output.write("\n".join([f"would {self.verb} {count(preview.total, 'event')}", *_groups(preview)]))
        if preview.examples:
            output.write("examples:")
            output.show(table(preview.examples))


def _groups(preview: "Preview") -> list[str]:
    """Return one line for each kind of event, with its count."""
    texts = [f"{one.count:>9,}  {one.state.lower():<9}  {one.event_type}, queue {one.queue}" for one in preview.groups]
    return output.first_kinds(texts)
