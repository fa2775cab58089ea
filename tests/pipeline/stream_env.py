"""Test helpers: a stream over any source, its state, and the records of its queues."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from step_env import Ground

from penstock import Streams
from penstock.model.lifecycle import State
from penstock.model.records import Record
from penstock.model.selection import Selection
from penstock.outbox import Outbox
from penstock.pipeline.streams.driver import run_streams
from penstock.runtime.store_cache import close_stores
from penstock.streams.context import Context, KeyState
from penstock.streams.engine.work import is_users
from penstock.streams.event import StreamEvent
from penstock.streams.sources import Source
from penstock.streams.state.registry import open_state
from tests.support.processes import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECONDS = 120.0

LIVE = frozenset({State.PENDING, State.CLAIMED})
DEAD = frozenset({State.DEAD})


def states(url: str, stream: str) -> dict[str, dict[str, Any]]:
    """Return the state of every key, or no states before the stream's first run."""
    store = open_state(url)
    try:
        if stream not in {started.stream for started in store.streams()}:
            return {}
        return {key: dict(KeyState(saved)) for key, saved in store.read(stream) if is_users(key)}
    finally:
        store.close()


def records(outbox: Outbox, queue: str, states: frozenset[State] | None = None) -> list[Record]:
    return list(outbox.store.find(Selection(queue=queue, states=states), limit=100_000).records)


class Shop:
    """A stream named "shop" over any source, with methods to run and inspect it."""

    def __init__(
        self, spark: "SparkSession", ground: Ground, source: Source, handler: Any = None, **given: Any
    ) -> None:
        self.ground = ground
        self.state = f"sqlite:///{ground.folder}/state"
        self.app = Streams(ground.url, state=self.state)
        self._spark = spark
        self.app.stream(source, name="shop", parts=3, retry_seconds=0.01, **given)(handler or remember)

    def run(self, checkpoint: Path | None = None) -> None:
        """Process all ready events."""
        self._run(checkpoint, once=True)

    def run_until(self, holds: Callable[[], bool], checkpoint: Path | None = None) -> None:
        """Run repeatedly until the condition holds: failed events are ready again only after their delay."""

        def once_more() -> bool:
            self.run(checkpoint)
            return holds()

        assert wait_until(once_more, SECONDS)

    def run_beside(self, holds: Callable[[], bool]) -> None:
        """Run the stream in a thread until the condition holds."""
        stop = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(self._run, None, stop=stop)
            try:
                assert wait_until(lambda: running.done() or holds(), SECONDS)
            finally:
                stop.set()
            running.result()

    def _run(self, checkpoint: Path | None, **given: Any) -> None:
        folder = None if checkpoint is None else str(checkpoint)
        try:
            run_streams(self.app, spark=self._spark, checkpoint=folder, **given)
        finally:
            close_stores()

    def seen(self) -> dict[str, list[Any]]:
        """Return the numbers that `remember` stored, by key."""
        return {key: found["seen"] for key, found in states(self.state, "shop").items()}

    def records(self, states: frozenset[State] | None = None) -> list[Record]:
        """Return the records of the retry queue."""
        return records(self.ground.outbox, "streams/shop", states)


def remember(event: StreamEvent, ctx: Context) -> None:
    """Append the event's number to the state of its key, in processing order, and emit an event."""
    ctx.state["seen"] = [*ctx.state.get("seen", []), event.json()["number"]]
    ctx.emit("order.seen", event.json(), queue="seen")
