"""Options that select events, declared once for all commands that take them."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

import typer

from penstock.cli.terminal import times
from penstock.cli.terminal.options import event_id
from penstock.model.errors import UsageError
from penstock.model.lifecycle import State
from penstock.model.selection import Selection

AGES = "ISO 8601, or an age such as 10m, 2h or 3d."

IdsOption = Annotated[list[str] | None, typer.Option("--id", metavar="ID", help="Only this event; repeatable.")]
StatesOption = Annotated[
    list[State] | None,
    typer.Option(
        "--state",
        metavar="STATE",
        case_sensitive=False,
        help="Only this state: pending, claimed, published or dead; repeatable.",
        show_default=False,
    ),
]
TypeOption = Annotated[str | None, typer.Option("--type", help="Only this type.")]
AllOption = Annotated[bool, typer.Option("--all", help="All events.")]


@dataclass(frozen=True, slots=True)
class Filters:
    """Filters of every command that selects events. Each field is an option."""

    queue: Annotated[str | None, typer.Option(help="Only this queue.")] = None
    event_type: TypeOption = None
    since: Annotated[str | None, typer.Option(metavar="TIME", help=f"Emitted at this time or later: {AGES}")] = None
    until: Annotated[str | None, typer.Option(metavar="TIME", help=f"Emitted before this time: {AGES}")] = None
    error: Annotated[str | None, typer.Option(metavar="TEXT", help="Last error contains this text.")] = None

    def select(
        self, *, ids: list[str] | None = None, states: list[State] | None = None, everything: bool = False
    ) -> Selection:
        """Return the selection that the command's options describe."""
        now = datetime.now(UTC)
        return Selection(
            ids=frozenset(map(event_id, ids)) if ids else None,
            states=frozenset(states) if states else None,
            queue=self.queue,
            event_type=self.event_type,
            since=None if self.since is None else times.instant(self.since, now),
            until=None if self.until is None else times.instant(self.until, now),
            error=self.error,
            everything=everything,
        )


@dataclass(frozen=True, slots=True)
class Choice(Filters):
    """Filters of a command that changes events: ids, states and --all as well."""

    ids: IdsOption = None
    state: StatesOption = None
    everything: AllOption = False

    def require(self, verb: str) -> Selection:
        """Return the selection; raise a usage error if it is empty."""
        return require_some(self.select(ids=self.ids, states=self.state, everything=self.everything), verb)


def require_some(chosen: Selection, verb: str, named: str = "--id, --state") -> Selection:
    """Raise a usage error that lists the options if the selection is empty."""
    if chosen.empty:
        raise UsageError(
            f"missing selection for {verb}; pass {named}, --queue, --type, --since, --until, --error or --all"
        )
    return chosen
