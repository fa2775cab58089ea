"""`publish(batch, to=…)`: sends the rows of a micro-batch to destinations, on the executors.

All rows are computed before the first is sent, so that a failing DataFrame publishes nothing. `settle` takes the
outcomes that `publish` returns.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

from penstock.config.urls import mask_url
from penstock.model.errors import UsageError
from penstock.model.event import Delivery, EventId
from penstock.model.lifecycle import OrderPolicy
from penstock.model.outcome import PUBLISHED, RELEASED, Outcome
from penstock.model.retry import RetryPolicy
from penstock.pipeline.datasource.columns import COLUMNS
from penstock.pipeline.datasource.sender import Dispatch, Sender, blocked_keys, reachable_from_workers
from penstock.pipeline.datasource.settle import fields_of, outcome_of, worst
from penstock.pipeline.spark.stop_channel import StopAddress, connection_to, hung_up
from penstock.publish.registry import open_publisher
from penstock.publish.topics import DEFAULT_TEMPLATE, Routing

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql import DataFrame

    Publishable: TypeAlias = DataFrame | Mapping[str, DataFrame]

NEEDED = ("seq", "event_id", "event_type", "payload")
# Columns that a transformation may remove; the events are then published without them.
MAY_BE_MISSING = ("headers", "partition_key", "ordering_key")
NEVER_NULL = (*NEEDED, "queue", "priority", "created_at", "available_at", "attempts", "deliveries")
OUTCOMES = "seq BIGINT, outcome STRING, error STRING, delay_seconds DOUBLE"
MAX_SENDERS = 16

Row = Mapping[str, Any]


def publish(
    batch: "Publishable",
    to: str | None = None,
    *,
    claimed: "DataFrame | None" = None,
    topic: str = DEFAULT_TEMPLATE,
    retry: RetryPolicy | None = None,
    order_policy: OrderPolicy = OrderPolicy.BLOCK,
    max_deliveries: int | None = None,
) -> dict[int, Outcome]:
    """Publish the rows of a micro-batch, inside `foreachBatch`; return the outcome of each event by seq, for `settle`.

    `batch` is a DataFrame for the destination `to`, or a mapping from the URLs of destinations to DataFrames. Columns
    that a transformation has removed are taken from `claimed`, the batch as it was claimed. An event may have several
    rows: all rows are published, and the event gets the worst of their outcomes.
    """
    spec = Dispatch(
        destination=to or "null:",
        routing=Routing(topic),
        retry=retry or RetryPolicy(),
        order_policy=order_policy,
        max_deliveries=max_deliveries,
    )
    return send_frames(frames_of(batch, to), spec, claimed)


def frames_of(batch: object, to: str | None) -> "dict[str, DataFrame]":
    """Return DataFrames by destination; raise UsageError for other types, unusable URLs and missing columns."""
    if not isinstance(batch, Mapping) and to is None:
        raise UsageError("missing destination; use publish(batch, to='kafka://broker:9092')")
    frames: dict[Any, Any] = dict(batch) if isinstance(batch, Mapping) else {to: batch}
    for url, frame in frames.items():
        if not hasattr(frame, "mapInArrow"):
            raise UsageError(
                "step must return a DataFrame or a mapping from URLs to DataFrames, got "
                f"{type(frame).__name__}{f' for {mask_url(str(url))}' if isinstance(batch, Mapping) else ''}"
            )
        if not isinstance(url, str):
            raise UsageError(f"step must return a mapping from URLs to DataFrames, got the key {url!r}")
        open_publisher(url).close()  # connects to nothing: an unusable URL fails before anything is published
        missing = [name for name in NEEDED if name not in frame.columns]
        if missing:
            raise UsageError(
                f"missing columns in the step's result for {mask_url(url)}: {', '.join(missing)}; "
                f"a step must keep {', '.join(NEEDED)}"
            )
    return frames


def send_frames(
    frames: "Mapping[str, DataFrame]",
    spec: Dispatch,
    claimed: "DataFrame | None" = None,
    *,
    stop_address: StopAddress | None = None,
    computed: Callable[[], object] = bool,
) -> dict[int, Outcome]:
    """Compute all rows, call `computed`, then send them; return the worst outcome of each event by seq.

    Once the driver closes the stop channel at `stop_address`, tasks release the rows that they have not begun to send.
    """
    outcomes: dict[int, Outcome] = {}
    with ExitStack() as persisted:
        ready = {url: _compute(_complete(frame, claimed), persisted) for url, frame in frames.items()}
        computed()
        for url, frame in ready.items():
            destination = reachable_from_workers(url, frame.sparkSession.sparkContext.master)
            task = partial(send_partition, replace(spec, destination=destination), stop_address)
            for row in frame.mapInArrow(task, OUTCOMES).collect():
                outcomes[row.seq] = worst(outcomes.get(row.seq, PUBLISHED), outcome_of(row.asDict()))
    return outcomes


def _complete(frame: "DataFrame", claimed: "DataFrame | None") -> "DataFrame":
    """Return the frame with exactly the columns of a delivery; missing ones come from `claimed`, by seq."""
    from pyspark.sql import functions as on

    missing = [name for name in Delivery._fields if name not in frame.columns and name not in MAY_BE_MISSING]
    if missing and claimed is None:
        raise UsageError(f"missing columns: {', '.join(missing)}; pass the claimed batch as claimed=")
    if missing and claimed is not None:
        frame = frame.join(on.broadcast(claimed.select("seq", *missing)), "seq", "left")
    given = set(frame.columns)
    return frame.select(
        *(
            (on.col(name) if name in given else on.lit(None)).cast(COLUMNS[name]).alias(name)
            for name in Delivery._fields
        )
    )


def _compute(frame: "DataFrame", persisted: ExitStack) -> "DataFrame":
    """Persist the frame and compute its rows. Bring the rows of each ordering key into one partition."""
    from pyspark.sql import functions as on

    frame.persist()
    persisted.callback(frame.unpersist)
    counted = frame.agg(on.count("ordering_key").alias("keyed")).first()
    if counted is None or not counted.keyed:
        return frame
    partitions = frame.sparkSession.sparkContext.defaultParallelism
    return frame.repartition(partitions, on.coalesce("ordering_key", on.col("seq").cast("string")))


# On the executors

_senders: OrderedDict[str, Sender] = OrderedDict()


def send_partition(
    spec: Dispatch, stop_address: StopAddress | None, batches: "Iterator[RecordBatch]"
) -> "Iterator[RecordBatch]":
    """Publish the rows of a partition; yield a row of `OUTCOMES` for each."""
    rows = [row for batch in batches for row in batch.to_pylist()]
    events = [delivery_of(row) for row in rows]  # convert all rows before sending: a bad row fails its partition
    if not events:
        return
    connection = None if stop_address is None else connection_to(stop_address)

    def stopped() -> bool:
        return stop_address is not None and hung_up(connection)

    yield _record_batch(send_rows(_sender_of(spec), spec.order_policy, events, stopped))


def send_rows(
    sender: Sender, order_policy: OrderPolicy, events: Sequence[Delivery], stopped: Callable[[], bool]
) -> list[tuple[int, Outcome]]:
    """Send the events, which may have several copies each; return (seq, outcome) for every copy."""
    if stopped():
        return [(event.seq, RELEASED) for event in events]
    sent: list[tuple[int, Outcome]] = []
    blocked: set[str] = set()
    for wave in _waves(events):
        going = [event for event in wave if event.ordering_key not in blocked]
        outcomes = {} if sent and stopped() else sender.send(going, stopped)
        blocked |= blocked_keys(going, outcomes, order_policy)
        sent += [(event.seq, outcomes.get(event.seq, RELEASED)) for event in wave]
    return sent


def _waves(events: Sequence[Delivery]) -> list[list[Delivery]]:
    """Split the events into waves, so that no wave has two copies of an event and ordering keys stay in order.

    Rows with an ordering key are sorted by seq, since a transformation may have shuffled them. Rows without one come
    first, in their original order.
    """
    copies: dict[int, int] = {}
    last_wave: dict[str, int] = {}
    waves: list[list[Delivery]] = []
    for event in sorted(events, key=lambda event: event.seq if event.ordering_key else -1):
        number = copies.get(event.seq, -1) + 1
        if event.ordering_key is not None:
            number = last_wave[event.ordering_key] = max(number, last_wave.get(event.ordering_key, 0))
        copies[event.seq] = number
        if number == len(waves):
            waves.append([])
        waves[number].append(event)
    return waves


def delivery_of(row: Row) -> Delivery:
    """Return the row as a claimed event; raise ValueError if a needed value is NULL."""
    missing = [name for name in NEVER_NULL if row[name] is None]
    if missing:
        raise ValueError(f"step returned a row with NULL in {', '.join(missing)}")
    fields = {name: row[name] for name in Delivery._fields}
    fields["event_id"] = EventId(UUID(row["event_id"]))
    fields["headers"] = dict(row["headers"]) if row["headers"] else None
    for name in ("created_at", "available_at"):
        fields[name] = row[name].astimezone(UTC)
    return Delivery(**fields)


def _sender_of(spec: Dispatch) -> Sender:
    """Return this process's sender for `spec`; close the least recently used ones beyond `MAX_SENDERS`."""
    name = repr(spec)
    if name not in _senders:
        _senders[name] = Sender(spec)
        while len(_senders) > MAX_SENDERS:
            _senders.popitem(last=False)[1].close()
    _senders.move_to_end(name)
    return _senders[name]


def _record_batch(sent: Sequence[tuple[int, Outcome]]) -> "RecordBatch":
    import pyarrow as pa

    kinds = [pa.int64(), pa.string(), pa.string(), pa.float64()]
    names = [column.split()[0] for column in OUTCOMES.split(", ")]
    columns = zip(*((seq, *fields_of(outcome)) for seq, outcome in sent), strict=True)
    arrays = [pa.array(values, kind) for values, kind in zip(columns, kinds, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names)
