"""`penstock relay`: delivers events from a queue to its destinations, on Spark."""

import logging
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.terminal import output
from penstock.cli.terminal.options import Call, takes_options
from penstock.config.import_path import search_working_folder
from penstock.config.routes import find_routes, parse_routes
from penstock.model.errors import MissingDriver, UsageError
from penstock.model.event import DEFAULT_QUEUE
from penstock.model.lifecycle import DEFAULT_MAX_ATTEMPTS, OrderPolicy
from penstock.model.outcome import Dropped
from penstock.model.retry import RetryPolicy
from penstock.telemetry import log

if TYPE_CHECKING:
    from penstock.pipeline import RelayOptions, RelayReport

COUNTS = ("claimed", "published", "discarded", "retried", "dead", "released", "lost", "routed")


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """Options of the command that are passed to `RelayOptions`."""

    queue: Annotated[str, typer.Option(help="Queue to relay.")] = DEFAULT_QUEUE
    once: Annotated[bool, typer.Option("--once", help="Deliver the events that are due now, then exit.")] = False
    topic: Annotated[str, typer.Option(metavar="TEMPLATE", help="Topic of an event, from its fields.")] = "{event_type}"
    master: Annotated[str | None, typer.Option(metavar="URL", help="Spark master; default this machine.")] = None
    parallelism: Annotated[int | None, typer.Option(min=1, help="Concurrent tasks; default one per core.")] = None
    batch: Annotated[int, typer.Option(min=1, help="Maximum number of events per claim.")] = 2_000
    lease_seconds: Annotated[float, typer.Option(help="Seconds until a lease expires without a heartbeat.")] = 60.0
    slice_seconds: Annotated[float, typer.Option(help="Length of a Spark micro-batch in seconds.")] = 5.0
    max_attempts: Annotated[int, typer.Option(min=1, help="Number of failures after which an event is dead.")] = (
        DEFAULT_MAX_ATTEMPTS
    )
    retry_delay: Annotated[
        float,
        typer.Option(help="Initial retry delay in seconds; doubles after each failure, with jitter, up to 1 hour."),
    ] = 1.0
    max_deliveries: Annotated[int | None, typer.Option(min=1, help="Deliveries after which an event is dead.")] = None
    order_policy: Annotated[
        OrderPolicy, typer.Option(help="Whether later events of an ordering key wait for a failed one.")
    ] = OrderPolicy.BLOCK
    checkpoint: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Spark checkpoint folder. Safe to delete.")
    ] = None
    step: Annotated[
        str | None, typer.Option(metavar="MODULE:FUNCTION", help="Function that transforms events before dispatch.")
    ] = None
    dropped: Annotated[Dropped, typer.Option(help="Outcome of events that the step does not return.")] = Dropped.DEAD


@takes_options
def relay(
    to: Annotated[
        str | None, typer.Option(metavar="URL", help="Destination of all events, such as file:///var/events.")
    ] = None,
    route: Annotated[
        list[str] | None,
        typer.Option(metavar="GLOB=URL", help="Destination of the event types that match the pattern; repeatable."),
    ] = None,
    config: Annotated[
        str | None, typer.Option(metavar="FILE", help="Routes file; default PENSTOCK_CONFIG or ./penstock.toml.")
    ] = None,
    *,
    settings: RelaySettings,
    call: Call,
) -> None:
    """Deliver events to their destinations until interrupted; with --once, until all due events are handled.

    Give one destination (--to) or routes by event type (--route, or a penstock.toml). With routes, each destination has
    a separate queue, such as outbox@archive, with separate retries: a failing destination doesn't delay the others.
    """
    options = _options(call.url, settings, _where(to, route or [], config))
    _check(call, options)
    report = _run(options)
    if call.json:
        output.write_json({**{name: getattr(report, name) for name in COUNTS}, "seconds": round(report.seconds, 3)})
    elif settings.once:
        output.write(summary(report))


def summary(report: "RelayReport") -> str:
    """Return the relay's counts in one line, zero counts left out."""
    counts = {name: getattr(report, name) for name in COUNTS[1:]}
    parts = ", ".join(f"{number:,} {name}" for name, number in counts.items() if number)
    return f"{parts} in {report.seconds:.1f} s" if parts else "no events were due"


def _where(to: str | None, route: list[str], config: str | None) -> dict[str, Any]:
    """Return the destination or the routes: from --to, --route or --config, else from penstock.toml."""
    if sum(map(bool, (to, route, config))) > 1:
        raise UsageError("--to, --route and --config are mutually exclusive")
    if to is not None:
        return {"destination": to}
    routes = parse_routes(route) if route else find_routes(config)
    if routes is None:
        raise UsageError("missing destination; set --to URL, --route 'GLOB=URL' or write a penstock.toml")
    return {"routes": routes}


def _options(store: str, settings: RelaySettings, where: dict[str, Any]) -> "RelayOptions":
    """Validate all options and return them, so that a mistake fails before Spark starts."""
    from penstock.pipeline import RelayOptions

    given = asdict(settings)
    retry = _retry(given.pop("max_attempts"), given.pop("retry_delay"))
    if settings.step is not None:
        search_working_folder()
    for name in ("lease_seconds", "slice_seconds"):
        if not isfinite(given[name]):
            raise UsageError(f"{name} must be finite, got {given[name]}")
    return RelayOptions(store=store, retry=retry, **given, **where)


def _retry(max_attempts: int, retry_delay: float) -> RetryPolicy:
    if not 0 <= retry_delay < float("inf"):
        raise UsageError(f"retry_delay must be finite and at least 0, got {retry_delay:g}")
    return RetryPolicy(max_attempts=max_attempts, initial_seconds=retry_delay)


def _check(call: Call, options: "RelayOptions") -> None:
    """Check the store and PySpark before the start of Spark, which takes seconds."""
    with call.opened() as admin:
        admin.store.ready(options.queue)
    if find_spec("pyspark") is None:
        raise MissingDriver("the relay", "spark")


def _run(options: "RelayOptions") -> "RelayReport":
    from penstock.pipeline import run_relay

    if not options.once:
        log.to_stderr()
        return run_relay(options)
    log.to_stderr(logging.WARNING)
    with output.waiting("starting Spark") as say:
        return run_relay(options, progress=lambda report: say(summary(report)))
