"""`penstock dead`: lists, shows, redrives and purges dead letters."""

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.admin.text import count
from penstock.cli.commands.events import headers_and_copies, short_error, short_time, timeline_table
from penstock.cli.terminal import output
from penstock.cli.terminal.confirmation import Consent, Operation
from penstock.cli.terminal.filters import AllOption, Filters, require_some
from penstock.cli.terminal.options import Call, LimitOption, event_id, group_of_commands, operator, takes_options
from penstock.cli.terminal.payloads import described
from penstock.model.errors import EventNotFound
from penstock.model.lifecycle import State
from penstock.model.selection import Selection

if TYPE_CHECKING:
    from rich.console import RenderableType

    from penstock.admin.dead_letters import LeftAlone, OfficeResult, Totals

SHOWN_KINDS = 10
SHOWN_ERROR = 20_000
NO_ERROR = "(no error)"
FIELDS = ("event_id", "event_type", "queue", "died_at", "attempts", "own_failures", "deliveries", "replays")
MORE_FIELDS = ("created_at", "partition_key", "ordering_key", "priority")

dead = group_of_commands("dead", "Inspect, redrive and purge dead letters.")

IdsArgument = Annotated[list[str] | None, typer.Argument(metavar="ID…", help="Event ids.", show_default=False)]


@dataclass(frozen=True, slots=True)
class Letters(Filters):
    """Options that select the dead letters of an operation."""

    ids: IdsArgument = None
    everything: AllOption = False

    def require(self, verb: str) -> Selection:
        """Return the selection; raise a usage error if it is empty."""
        return require_some(self.select(ids=self.ids, everything=self.everything), verb, "event ids")


@dead.command("list")
@takes_options
def list_dead(
    filters: Filters,
    limit: LimitOption = 50,
    after: Annotated[
        str | None, typer.Option(metavar="POSITION", help="Continue after the position printed by the previous list.")
    ] = None,
    *,
    call: Call,
) -> None:
    """List dead letters, latest death first, with totals by queue and by error."""
    chosen = filters.select()
    with call.opened() as admin:
        page = admin.dead_letters.find(chosen, after=after, limit=limit)
        totals = admin.dead_letters.totals(chosen)
    if call.json:
        output.write_json({**page.as_json(), "totals": totals.as_json()})
    elif totals.total:
        output.show(_table(page.dead_letters))
        output.write(_totals(totals))
    else:
        output.note("no dead letters match")
    if page.after is not None:
        output.note(f"more results: use --after {page.after}")


@dead.command()
@takes_options
def show(
    event: Annotated[str, typer.Argument(metavar="ID", help="Event id.")],
    payload_only: Annotated[
        bool, typer.Option("--payload-only", help="Print only the payload, byte for byte; escaped on a terminal.")
    ] = False,
    *,
    call: Call,
) -> None:
    """Show one dead letter: its error, payload, origin and timeline."""
    from penstock.publish.json_message import payload_bytes

    wanted = event_id(event)
    with call.opened() as admin:
        letter = admin.dead_letters.show(wanted)
    if call.json:
        names = ("payload", "payload_encoding") if payload_only else tuple(letter)
        output.write_json({name: letter[name] for name in names})
    elif not payload_only:
        _show(letter, payload_bytes(letter))
    elif sys.stdout.isatty():
        output.write(described(payload_bytes(letter), whole=True))
    else:
        output.write_bytes(payload_bytes(letter))


@dead.command()
@takes_options
def redrive(letters: Letters, consent: Consent, call: Call) -> None:
    """Make dead letters pending again, under their existing ids, to retry them.

    More than one event needs a confirmation or --yes. Events that are no longer dead are left unchanged.
    """
    chosen = letters.require("redrive")
    with call.opened() as admin:
        office = admin.dead_letters
        plan = office.redrive(chosen, dry_run=True)
        operation = Operation("redrive", "redriven", call, consent, unasked=1, insists=True)
        _carry_out(operation, plan, lambda update: office.redrive(chosen, by=operator(), progress=update).count)


@dead.command()
@takes_options
def purge(letters: Letters, consent: Consent, call: Call) -> None:
    """Delete dead letters and their timelines permanently. Needs --yes if standard input is not a terminal."""
    chosen = letters.require("purge")
    consent.require("purge")
    with call.opened() as admin:
        office = admin.dead_letters
        plan = office.purge(chosen, dry_run=True)
        operation = Operation("purge", "purged", call, consent)
        _carry_out(operation, plan, lambda update: office.purge(chosen, progress=update).count)


def _carry_out(operation: Operation, plan: "OfficeResult", work: Any) -> None:
    """Refuse unknown ids before any change; report ids that are no longer dead, and run the operation."""
    for one in plan.left_alone:
        if one.state is None:
            raise EventNotFound(one.event_id)
        if not operation.call.json:
            output.note(_why(one))
    assert plan.preview is not None
    operation.carry_out(plan.preview, work, {"left_alone": plan.as_json()["left_alone"]})


def _why(one: "LeftAlone") -> str:
    reason = "dead, but not selected" if one.state == State.DEAD else f"{str(one.state).lower()}, not dead"
    return f"{one.event_id} is {reason}; left unchanged"


def _table(letters: list[dict[str, Any]]) -> "RenderableType":
    rows = (
        {
            "died": short_time(letter["died_at"]),
            "queue": letter["queue"],
            "type": letter["event_type"],
            "id": letter["event_id"],
            "attempts": str(letter["attempts"]),
            "error": short_error(letter["error"]),
        }
        for letter in letters
    )
    columns = ("died", "queue", "type", "id", "attempts", "error")
    return output.table(rows, columns, right=("attempts",), whole=("died", "id"))


def _totals(totals: "Totals") -> str:
    """Return the total, and the counts by queue and by kind of error."""
    return "\n".join(
        [
            f"\n{count(totals.total, 'dead letter')}",
            *_kinds([(one.queue, one.count) for one in totals.queues], "queue"),
            *_kinds([(one.error, one.count) for one in totals.errors], "error"),
        ]
    )


def _kinds(counts: list[tuple[str, int]], noun: str) -> list[str]:
    lines = [f"  {number:>9,}  {output.clean_line(kind) or NO_ERROR}" for kind, number in counts[:SHOWN_KINDS]]
    left = counts[SHOWN_KINDS:]
    rest = f"  {sum(number for _, number in left):>9,}  in {len(left):,} more" if left else None
    return [f"by {noun}", *lines, *([rest] if rest else [])]


def _show(letter: dict[str, Any], payload: bytes) -> None:
    output.show(_fields(letter))
    error = letter["last_error"] or NO_ERROR
    cut = f"\n… and {count(len(error) - SHOWN_ERROR, 'more character')}; use --json for the complete error"
    output.write(f"\nerror\n{output.clean(error[:SHOWN_ERROR])}{cut if len(error) > SHOWN_ERROR else ''}")
    output.write(f"\n{described(payload)}\n")
    output.show(timeline_table(letter["timeline"], brief=True))


def _fields(letter: dict[str, Any]) -> "RenderableType":
    from penstock.admin.dead_letters import STREAM_HEADER

    fields = [(name, str(letter[name])) for name in (*FIELDS, *MORE_FIELDS) if letter[name] is not None]
    origin = [(f"came from {name}", value) for name, value in letter["came_from"].items()]
    shown = {f"{STREAM_HEADER}{name}" for name in letter["came_from"]}
    others = {name: value for name, value in letter["headers"].items() if name not in shown}
    return output.grid([*fields, *origin, *headers_and_copies({**letter, "headers": others})])
