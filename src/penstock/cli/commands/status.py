"""`penstock status`: counts, leases, relays, workers and findings of a store."""

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.admin.text import age, count, first_line
from penstock.cli.commands.events import since_when
from penstock.cli.terminal import output
from penstock.cli.terminal.options import Call, takes_options

if TYPE_CHECKING:
    from rich.console import RenderableType

    from penstock.admin.service import Admin, QueueStatus, RelayStatus, Status

SHOWN_ERRORS = 4
ERROR_WIDTH = 100


@takes_options
def status(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh until interrupted.")] = False,
    every: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="Refresh interval of --watch.")] = 2.0,
    *,
    call: Call,
) -> None:
    """Show counts of events by queue and state, running relays and workers, and problems with remedies."""
    with call.opened() as admin:
        if watch:
            _watch(admin, every, call.json)
        elif call.json:
            output.write_json(admin.status().as_json())
        else:
            output.show(*view(admin.status()))


def _watch(admin: "Admin", every: float, as_json: bool) -> None:
    """Refresh in place on a terminal; elsewhere print each status after the previous one, as JSON on one line each."""
    while as_json or not sys.stdout.isatty():
        if as_json:
            output.write_json(admin.status().as_json(), indent=None)
        else:
            output.show(*view(admin.status()), "")
        time.sleep(every)
    from rich.console import Group
    from rich.live import Live

    with Live(console=output.console(), auto_refresh=False) as live:
        while True:
            live.update(Group(*view(admin.status())), refresh=True)
            time.sleep(every)


def view(status: "Status") -> "list[RenderableType]":
    parts: list[RenderableType] = [output.clean_line(status.store)]
    parts.append(_queues(status) if status.queues else "no events yet; emit one: penstock emit TYPE PAYLOAD")
    parts += [_leases(status), *_relays(status), *_findings(status), *_errors(status)]
    return parts


def _queues(status: "Status") -> "RenderableType":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_footer=len(status.queues) > 1, pad_edge=False, show_edge=False)
    table.add_column("queue", footer="all")
    for name in ("pending", "ready", "claimed", "published", "dead"):
        style = "red" if name == "dead" and status.dead else ""
        table.add_column(name, justify="right", style=style, footer=f"{getattr(status, name):,}")
    table.add_column("oldest", justify="right", footer=_age(status.oldest_pending_seconds if status.ready else None))
    limited = any(queue.max_claimed is not None for queue in status.queues)
    paused = any(queue.paused_at is not None for queue in status.queues)
    if limited:
        table.add_column("limit", justify="right")
    if paused:
        table.add_column("paused", style="yellow")
    for queue in status.queues:
        numbers = (queue.pending, queue.ready, queue.claimed, queue.published, queue.dead)
        cells = [_number(number) for number in numbers]
        cells.append(_age(queue.oldest_pending_seconds if queue.ready else None))
        cells += [_number(queue.max_claimed)] if limited else []
        cells += [_paused(queue)] if paused else []
        table.add_row(output.clean_line(queue.queue), *cells)
    return table


def _number(number: int | None) -> str:
    return f"{number:,}" if number else "·"


def _paused(queue: "QueueStatus") -> str:
    return "·" if queue.paused_at is None else since_when(queue.paused_at, queue.paused_by)


def _age(seconds: float | None) -> str:
    return "·" if seconds is None else age(seconds)


def _leases(status: "Status") -> str:
    expired = f", {status.expired_leases:,} of them expired" if status.expired_leases else ""
    oldest = status.oldest_snapshot_seconds
    snapshot = "" if oldest is None else f"; the oldest snapshot is {age(oldest)} old"
    return f"{count(status.open_leases, 'open lease')}{expired}{snapshot}"


def _relays(status: "Status") -> "list[RenderableType]":
    if not status.relays:
        return ["no relay or worker is running"]
    relays = [_relay(relay) for relay in status.relays if relay.kind == "relay"]
    hosts: dict[tuple[str, bool], list[RelayStatus]] = {}
    for relay in status.relays:
        if relay.kind == "worker":
            hosts.setdefault((relay.host, relay.alive), []).append(relay)
    return [*relays, *(_workers(host, workers) for (host, _), workers in hosts.items())]


def _relay(relay: "RelayStatus") -> str:
    stopping = ", stopping" if relay.stopping else ""
    text = f"relay on {relay.host}: {relay.queue} to {relay.destination}, seen {_age(relay.seen_seconds_ago)} ago"
    return output.clean_line(text + stopping)


def _workers(host: str, announced: "list[RelayStatus]") -> str:
    """Return one line for all workers of a host, each of which announces every queue; with the longest silence."""
    number = len({one.destination for one in announced})
    queues = ", ".join(sorted({one.queue for one in announced}))
    seen = max(one.seen_seconds_ago for one in announced)
    return output.clean_line(f"{count(number, 'worker')} on {host}: {queues}, seen {_age(seen)} ago")


def _errors(status: "Status") -> "list[RenderableType]":
    """Return the commonest errors after the first, which the findings contain."""
    shown = status.dead_errors[1:SHOWN_ERRORS]
    return [f"other error: {output.clean_line(first_line(one.error, ERROR_WIDTH))} ({one.count:,})" for one in shown]


def _findings(status: "Status") -> "list[RenderableType]":
    from rich.text import Text

    if not status.findings:
        return [Text("no problems found", style="green")]
    return [
        Text(f"! {output.clean_line(str(one))}", style="yellow")
        if one.level == "warn"
        else Text(f"- {output.clean_line(str(one))}")
        for one in status.findings
    ]
