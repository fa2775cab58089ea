"""The program under test: a stream as a user would write it, run in a separate process.

python -m chaos.program '{"store": …, "state": …, "source": …, "cores": 2, "checkpoint": …}'
"""

import json
import sys
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from chaos.orders import NEVER
from penstock import Streams
from penstock.model.errors import PenstockError, UsageError
from penstock.streams.context import Context, Emitter, KeyState
from penstock.streams.engine.batch_handlers import BatchContext
from penstock.streams.event import StreamEvent
from penstock.streams.sources import Frame, Kafka, Queue, Source, Valkey
from penstock.streams.state.api import Superseded
from penstock.telemetry import log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STREAM = "total"
COUNTED = "counted"
PARTS = 4
LEASE_SECONDS = 10.0
USAGE = 2
SUPERSEDED = 3
ROWS = "event_id STRING, number INT, key STRING, amount BIGINT, fails INT"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of the program. `source` has the kind of the source, with its names and addresses."""

    store: str
    state: str
    source: dict[str, str] = field(default_factory=dict)
    cores: int = 2
    checkpoint: str | None = None
    once: bool = False

    def text(self) -> str:
        return json.dumps(asdict(self))


def source_of(named: dict[str, str]) -> Source:
    """Return the source that the settings describe."""
    match named["kind"]:
        case "queue":
            return Queue(named["queue"])
        case "valkey":
            return Valkey(named["url"], named["stream"], min_idle_time_ms=int(LEASE_SECONDS * 1_000))
        case "kafka":
            return Kafka(named["servers"], named["topic"])
        case _:
            folder = named["folder"]
            return Frame(lambda spark: _read_folder(spark, folder))


def _read_folder(spark: "SparkSession", folder: str) -> "DataFrame":
    return spark.readStream.schema(ROWS).json(folder)


def application(settings: Settings) -> Streams:
    """Return an application that counts and adds up the orders of each key, and emits an event for each order."""
    app = Streams(settings.store, state=settings.state)
    stream = partial(
        app.stream,
        source_of(settings.source),
        key=lambda event: event.json()["key"],
        name=STREAM,
        parts=PARTS,
        retry_seconds=0.05,
        lease_seconds=LEASE_SECONDS,
    )

    def total(event: StreamEvent, ctx: Context) -> None:
        count(event.json(), event.attempts, ctx.state, ctx)

    def total_of_all(events: Any, ctx: BatchContext) -> None:
        for event in events.select(["key", "payload", "attempts"]).to_pylist():
            count(json.loads(event["payload"]), event["attempts"], ctx.states[event["key"]], ctx)

    if settings.source["kind"] == "batches":
        stream(batch="arrow")(total_of_all)
    else:
        stream()(total)
    return app


def count(order: dict[str, Any], attempts: int, state: KeyState, emitter: Emitter) -> None:
    """Process one order. A failing order raises after all its changes, so that the stream must undo them."""
    state["count"] = state.get("count", 0) + 1
    state["sum"] = state.get("sum", 0) + order["amount"]
    emitter.emit("order.counted", {"number": order["number"]}, queue=COUNTED)
    if order["fails"] == NEVER:
        raise ValueError("never")
    if order["fails"] > attempts:
        raise ConnectionError("not yet")


def main(given: dict[str, Any]) -> int:
    """Run until killed or superseded; with `once`, until no event is ready. Return the exit status."""
    from chaos import crashing
    from penstock.pipeline.streams.driver import run_streams

    settings = Settings(**given)
    log.to_stderr()
    crashing.arm()
    try:
        run_streams(
            application(settings),
            master=f"local[{settings.cores}]",
            checkpoint=settings.checkpoint,
            once=settings.once,
        )
    except Superseded as error:
        print(f"superseded: {error}", file=sys.stderr)
        return SUPERSEDED
    except UsageError as error:
        print(error, file=sys.stderr)
        return USAGE
    except PenstockError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
