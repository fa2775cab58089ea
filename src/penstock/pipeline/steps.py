"""What a step is: a function of the user's between claim and dispatch, from a DataFrame of events to one, or to several
with a destination each. This module finds it, and says what its result has to look like.

What runs it is `penstock.pipeline.step_batches`.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from penstock.config import mask_url
from penstock.errors import UsageError
from penstock.event import Delivery
from penstock.loading import Wanted
from penstock.publish import open_publisher

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    StepResult: TypeAlias = DataFrame | Mapping[str, DataFrame]
    Step: TypeAlias = Callable[[DataFrame], StepResult]

STEP = Wanted("step", Callable, "shop.steps:only_paid")
# By these a row is settled.
TRACKED = ("seq", "lease", "token")
NEEDED = (*TRACKED, "event_id", "event_type", "payload")
# What a step leaves out of these is not published.
PUBLISHED_IF_THERE = ("headers", "partition_key", "ordering_key")


def load_step(step: "Step | str") -> "Step":
    """The function that `module:function` names; a function stays what it is."""
    if isinstance(step, str):
        named: Step = STEP.load(step)
        return named
    if not callable(step):
        raise UsageError(f"a step is a function, and not of type {type(step).__name__}")
    return step


def routes_of(result: object, destination: str) -> "dict[str, DataFrame]":
    """A step's result as DataFrames by destination, each with all the columns that it needs."""
    routes: dict[Any, Any] = dict(result) if isinstance(result, Mapping) else {destination: result}
    for url, frame in routes.items():
        if not hasattr(frame, "mapInArrow"):
            raise UsageError(
                f"a step returns a DataFrame, or a mapping from URLs to DataFrames; this one returned "
                f"{type(frame).__name__}{f' for {url}' if isinstance(result, Mapping) else ''}"
            )
        if not isinstance(url, str):
            raise UsageError(f"a step maps the URLs of destinations to DataFrames; {url!r} is no URL")
        if url != destination:
            open_publisher(url).close()  # connects to nothing: a bad URL is told before anything is published
        missing = [name for name in NEEDED if name not in frame.columns]
        if missing:
            raise UsageError(
                f"the step's result for {mask_url(url)} lacks {', '.join(missing)}; "
                f"the columns {', '.join(NEEDED)} must survive a step"
            )
    return routes


def as_deliveries(frame: "DataFrame", events: "DataFrame", partitions: int | None = None) -> "DataFrame":
    """The frame with the columns of a delivery and no others, whatever a step has made of them.

    What tells how an event has fared so far comes from the event itself where a step left it out. With `partitions`
    the rows of an ordering key are brought together again, so that one task has them all and can keep their order.
    """
    from pyspark.sql import functions as on

    from penstock.pipeline.source import COLUMNS

    wanted = (*Delivery._fields, "lease", "token")
    lost = [name for name in wanted if name not in frame.columns and name not in PUBLISHED_IF_THERE]
    if lost:
        frame = frame.join(on.broadcast(events.select("seq", *lost)), "seq", "left")
    there = set(frame.columns)
    complete = frame.select(
        *((on.col(name) if name in there else on.lit(None)).cast(COLUMNS[name]).alias(name) for name in wanted)
    )
    if partitions is None:
        return complete
    return complete.repartition(partitions, on.coalesce("ordering_key", on.col("seq").cast("string")))
