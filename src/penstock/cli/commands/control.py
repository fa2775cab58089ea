"""`penstock pause`, `resume`, `limit` and `cancel`: controls of queues and cancellation of events."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.admin.text import count
from penstock.cli.commands.events import since_when
from penstock.cli.terminal import output
from penstock.cli.terminal.confirmation import Consent, Operation
from penstock.cli.terminal.filters import Choice
from penstock.cli.terminal.options import Call, operator, takes_options
from penstock.model.errors import UsageError

if TYPE_CHECKING:
    from penstock.admin.service import Admin

NO_LIMIT = "none"

QueueArgument = Annotated[str, typer.Argument(metavar="QUEUE", help="Queue name.", show_default=False)]
LimitArgument = Annotated[
    str, typer.Argument(metavar="N|none", help="Maximum number of claimed events, or none.", show_default=False)
]
ReasonOption = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Reason, stored as the error.")]


@takes_options
def pause(queue: QueueArgument, call: Call) -> None:
    """Stop claims from a queue, in every process, until the queue is resumed.

    Events that are already claimed are still delivered, and new events can be emitted.
    """
    with call.opened() as admin:
        control = admin.pause(queue, by=operator())
        _remark_on_idle(admin, queue)
    call.answer(control, f"queue {output.clean_line(queue)} is paused{_since(control)}")


@takes_options
def resume(queue: QueueArgument, call: Call) -> None:
    """End the pause of a queue."""
    with call.opened() as admin:
        resumed = admin.resume(queue)
    text = f"queue {output.clean_line(queue)} {'is resumed' if resumed else 'was not paused'}"
    call.answer({"queue": queue, "resumed": resumed}, text)


@takes_options
def limit(queue: QueueArgument, most: LimitArgument, call: Call) -> None:
    """Limit the number of events of a queue that are claimed at a time, across all processes."""
    max_claimed = _limit(most)
    with call.opened() as admin:
        control = admin.limit(queue, max_claimed)
        if max_claimed is not None:
            _remark_on_idle(admin, queue)
    has = "no limit" if max_claimed is None else f"a limit of {count(max_claimed, 'event')} claimed at a time"
    call.answer(control, f"queue {output.clean_line(queue)} has {has}")


@takes_options
def cancel(choice: Choice, reason: ReasonOption = None, *, consent: Consent, call: Call) -> None:
    """Make pending events dead before they are delivered; claimed events only with --state claimed or --id.

    The claimant of a cancelled event can no longer settle the event. A replay makes cancelled events pending again.
    """
    chosen = choice.require("cancel")
    why = {} if reason is None else {"reason": reason}
    with call.opened() as admin:
        work = lambda update: admin.cancel(chosen, by=operator(), progress=update, **why)  # noqa: E731
        Operation("cancel", "cancelled", call, consent).carry_out(admin.preview_cancel(chosen), work)


def _since(control: dict[str, Any]) -> str:
    """Return the start and author of the pause; nothing if the queue was resumed in the meantime."""
    return "" if control["paused_at"] is None else f", {since_when(control['paused_at'], control['paused_by'])}"


def _limit(text: str) -> int | None:
    if text.strip().lower() == NO_LIMIT:
        return None
    try:
        return int(text)
    except ValueError as error:
        raise UsageError(f"invalid limit {text!r}; expected an integer of at least 1, or none") from error


def _remark_on_idle(admin: "Admin", queue: str) -> None:
    """Warn that the queue may be misspelled; pauses and limits also apply to a queue without events."""
    if admin.idle(queue):
        output.note(f"queue {output.clean_line(queue)} has no pending or claimed events; check its name")
