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

    queue: Annotated[str, typer.Option(help="The queue to carry from.")] = DEFAULT_QUEUE
    once: Annotated[bool, typer.Option("--once", help="Carry what is pending now, then end.")] = False
    topic: Annotated[str, typer.Option(metavar="TEMPLATE", help="The topic, made from the event.")] = "{event_type}"
    master: Annotated[str | None, typer.Option(metavar="URL", help="A Spark cluster; else this machine.")] = None
    parallelism: Annotated[int | None, typer.Option(min=1, help="Tasks at a time; else one a core.")] = None
    batch: Annotated[int, typer.Option(min=1, help="Events in a claim, at most.")] = 2_000
    lease_seconds: Annotated[float, typer.Option(help="How long a claim holds without a heartbeat.")] = 60.0
    slice_seconds: Annotated[float, typer.Option(help="The length of a Spark micro-batch.")] = 5.0
    max_attempts: Annotated[int, typer.Option(min=1, help="Failures after which an event is dead.")] = (
        DEFAULT_MAX_ATTEMPTS
    )
    retry_delay: Annotated[
        float, typer.Option(help="Longest wait in seconds before the first retry; doubles each time, up to 1 h.")
    ] = 1.0
    max_deliveries: Annotated[int | None, typer.Option(min=1, help="Hand-outs after which an event is dead.")] = None
    order_policy: Annotated[
        OrderPolicy, typer.Option(help="After a failure, whether later events of its ordering key wait.")
    ] = OrderPolicy.BLOCK
    checkpoint: Annotated[str | None, typer.Option(metavar="FOLDER", help="Spark's own; may be lost.")] = None
    step: Annotated[str | None, typer.Option(metavar="MODULE:FUNCTION", help="What events go through first.")] = None
    dropped: Annotated[Dropped, typer.Option(help="What becomes of events that the step drops.")] = Dropped.DEAD


@takes_options
def relay(
    to: Annotated[
        str | None, typer.Option(metavar="URL", help="One destination for all, such as file:///var/events.")
    ] = None,
    route: Annotated[
        list[str] | None,
        typer.Option(metavar="GLOB=URL", help="A destination for events of these types. Can be given again."),
    ] = None,
    config: Annotated[
        str | None, typer.Option(metavar="FILE", help="Routes from a file; else from penstock.toml, if there is one.")
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
    return f"{parts} in {report.seconds:.1f} s" if parts else "nothing was pending"


def _where(to: str | None, route: list[str], config: str | None) -> dict[str, Any]:
    """Return the destination or the routes: from --to, --route or --config, else from penstock.toml."""
    if sum(map(bool, (to, route, config))) > 1:
        raise UsageError("give one of --to, --route and --config")
    if to is not None:
        return {"destination": to}
    routes = parse_routes(route) if route else find_routes(config)
    if routes is None:
        raise UsageError("where to? give --to URL, --route 'GLOB=URL', or write a penstock.toml")
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
            raise UsageError(f"{name.replace('_', ' ')} must be a number, not {given[name]}")
    return RelayOptions(store=store, retry=retry, **given, **where)


def _retry(max_attempts: int, retry_delay: float) -> RetryPolicy:
    if not 0 <= retry_delay < float("inf"):
        raise UsageError(f"the retry delay must be a number of seconds, 0 or more, not {retry_delay:g}")
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
