"""Options of a relay, and its lanes with their task specs."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias

from penstock.config.import_path import ImportTarget
from penstock.config.routes import Destination, Routes, queue_of
from penstock.config.urls import mask_url
from penstock.model.errors import UsageError
from penstock.model.event import DEFAULT_QUEUE
from penstock.model.lease import DEFAULT_LEASE_SECONDS
from penstock.model.lifecycle import OrderPolicy
from penstock.model.outcome import Dropped
from penstock.model.retry import RetryPolicy
from penstock.pipeline.datasource.sender import Dispatch, RelayTaskSpec, reachable_from_workers
from penstock.pipeline.lake.layout import Lake, is_lake
from penstock.publish.registry import open_publisher
from penstock.publish.topics import Routing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.pipeline.datasource.publish import Publishable

    Step: TypeAlias = Callable[[DataFrame], Publishable]

STEP = ImportTarget("step", Callable, "shop.steps:only_paid")


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayOptions:
    """Options of a relay: store, queue, destinations, and settings of claims and delivery."""

    store: str
    destination: str | None = None
    """URL of the destination of all events; None if `routes` is set."""
    routes: Routes | None = None
    queue: str = DEFAULT_QUEUE
    batch: int = 2_000
    parallelism: int | None = None
    lease_seconds: float = DEFAULT_LEASE_SECONDS
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    topic: str = "{event_type}"
    order_policy: OrderPolicy = OrderPolicy.BLOCK
    max_deliveries: int | None = None
    master: str | None = None
    once: bool = False
    checkpoint: str | None = None
    slice_seconds: float = 5.0
    step: "Step | str | None" = None
    """Function from a DataFrame of claimed events to the events to dispatch, or its name: `module:function`."""
    dropped: Dropped = Dropped.DEAD

    def __post_init__(self) -> None:
        for name in ("batch", "lease_seconds", "slice_seconds", "parallelism", "max_deliveries"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise UsageError(f"{name} must be greater than 0, got {value}")
        if (self.destination is None) == (self.routes is None):
            raise UsageError("set either a destination (--to) or routes (--route or penstock.toml), and not both")
        if self.step is not None and self.routes is not None:
            raise UsageError("step and routes are mutually exclusive; set a destination (--to)")
        if self.step is not None and is_lake(self.destination or "null:"):
            raise UsageError("lake destinations do not support steps; write the step's result to the lake with Spark")
        for lane in lanes_of(self, None):  # opens no connection: a bad URL or template fails at once
            _require_destination(lane.spec.dispatch.destination)
        if self.step is not None:
            load_step(self.step)


@dataclass(frozen=True, slots=True)
class Lane:
    """A queue with its destination, as a relay serves it; or a queue that the relay routes to several destinations."""

    spec: RelayTaskSpec
    to: str


def lanes_of(options: RelayOptions, until: datetime | None) -> list[Lane]:
    """Return the lanes: one for a single destination; with routes, one that routes and one for each destination."""
    spec = _task_spec(options, until)
    if options.routes is None:
        return [Lane(spec, mask_url(spec.dispatch.destination))]
    lanes = [Lane(replace(spec, routes=options.routes), "routes")]
    for destination in options.routes.used:
        dispatch = replace(
            spec.dispatch,
            destination=reachable_from_workers(destination.url, options.master),
            retry=_retry_to(destination, options.retry),
            routing=Routing(destination.topic or options.topic, options.routes.topics_of(destination.name)),
        )
        published = replace(spec, queue=queue_of(options.queue, destination.name), dispatch=dispatch)
        lanes.append(Lane(published, f"{destination.name} ({mask_url(destination.url)})"))
    return lanes


def load_step(step: "Step | str") -> "Step":
    """Return the function that `module:function` names; return a function unchanged."""
    if isinstance(step, str):
        named: Step = STEP.load(step)
        return named
    if not callable(step):
        raise UsageError(f"step must be a function, got {type(step).__name__}")
    return step


def _require_destination(url: str) -> None:
    if is_lake(url):
        Lake.parse(url)
    else:
        open_publisher(url).close()


def _retry_to(destination: Destination, policy: RetryPolicy) -> RetryPolicy:
    return replace(
        policy,
        max_attempts=destination.max_attempts or policy.max_attempts,
        initial_seconds=policy.initial_seconds if destination.retry_delay is None else destination.retry_delay,
    )


def _task_spec(options: RelayOptions, until: datetime | None) -> RelayTaskSpec:
    dispatch = Dispatch(
        destination=reachable_from_workers(options.destination or "null:", options.master),
        routing=Routing(options.topic),
        retry=options.retry,
        order_policy=options.order_policy,
        max_deliveries=options.max_deliveries,
    )
    return RelayTaskSpec(
        store=options.store,
        queue=options.queue,
        batch=options.batch,
        lease_seconds=options.lease_seconds,
        dispatch=dispatch,
        until=until,
    )
