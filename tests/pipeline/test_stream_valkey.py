"""Streams over Valkey: entries are acknowledged after the commit and taken over when idle; failures are retried."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from valkey_env import ValkeyGround

from penstock import Outbox, Streams, connect
from penstock.model.errors import PipelineError
from penstock.model.lifecycle import State
from penstock.model.records import Record
from penstock.model.selection import Selection
from penstock.runtime.store_cache import close_stores
from penstock.streams import Context, StreamEvent, Valkey
from penstock.streams.context import KeyState
from penstock.streams.engine.work import is_users
from penstock.streams.state.registry import open_state

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

GROUP = "totals"
SECONDS = 180.0


class Ground:
    """A stream that sums the entries of the Valkey stream `orders`."""

    def __init__(self, spark: "SparkSession", valkey: ValkeyGround, outbox: Outbox, folder: Path) -> None:
        self.spark = spark
        self.valkey = valkey
        self.outbox = outbox
        self.state = f"sqlite:///{folder / 'state'}"

    def add(self, amount: int, entry: str = "*", key: str = "a", **fields: object) -> str:
        payload = json.dumps({"key": key, "amount": amount, **fields})
        return str(self.valkey.client.xadd("orders", {"payload": payload}, id=entry).decode())

    def run(self, min_idle_time_ms: int = 60_000) -> None:
        source = Valkey(self.valkey.url, "orders", GROUP, min_idle_time_ms)
        app = Streams(self.outbox.store.url, state=self.state)

        @app.stream(source, key=lambda event: event.json()["key"], parts=2, retry_seconds=0.01)
        def total(event: StreamEvent, ctx: Context) -> None:
            order = event.json()
            ctx.state["sum"] = ctx.state.get("sum", 0) + order["amount"]
            ctx.emit("order.counted", {"amount": order["amount"]}, queue="counted")
            if order.get("fails", 0) > event.attempts + event.moved + 10 * event.replays:
                raise ConnectionError("not yet")

        app.run(spark=self.spark, once=True)

    def drain(self) -> None:
        """Run repeatedly until the retry queue has no pending or claimed events."""
        until = time.monotonic() + SECONDS
        self.run()
        while self.own(State.PENDING, State.CLAIMED):
            assert time.monotonic() < until
            self.run()

    def sums(self) -> dict[str, Any]:
        store = open_state(self.state)
        try:
            return {key: dict(KeyState(saved))["sum"] for key, saved in store.read("total") if is_users(key)}
        finally:
            store.close()

    def counted(self) -> list[int]:
        records = self.outbox.store.find(Selection(queue="counted"), limit=1_000).records
        return sorted(json.loads(record.payload)["amount"] for record in records)

    def own(self, *states: State) -> list[Record]:
        chosen = Selection(queue="streams/total", states=frozenset(states))
        return list(self.outbox.store.find(chosen, limit=1_000).records)

    def pending(self) -> int:
        return int(self.valkey.client.xpending("orders", GROUP)["pending"])


@pytest.fixture
def ground(spark: "SparkSession", valkey: ValkeyGround, tmp_path: Path) -> Iterator[Ground]:
    with connect(f"sqlite:///{tmp_path / 'shop.db'}") as outbox:
        outbox.store.initialise()
        yield Ground(spark, valkey, outbox, tmp_path)
    close_stores()


def test_entries_are_applied_once_and_acknowledged(ground: Ground) -> None:
    for amount in range(1, 101):
        ground.add(amount, key=f"k{amount % 5}")
    ground.run()
    ground.run()  # with a new checkpoint: nothing is applied twice
    assert ground.sums() == {f"k{n}": sum(a for a in range(1, 101) if a % 5 == n) for n in range(5)}
    assert ground.counted() == list(range(1, 101))
    assert ground.pending() == 0


def test_older_entries_taken_over_from_consumer_are_applied(ground: Ground) -> None:
    ground.add(1, "9-1")
    ground.valkey.client.xgroup_create("orders", GROUP, "0")
    ground.valkey.client.xreadgroup(GROUP, "one that died", {"orders": ">"})
    ground.add(2, "10-1")
    ground.add(4, "10-2")
    ground.run()
    assert ground.sums() == {"a": 6}
    assert ground.pending() == 1, "it is another consumer's, for now"
    ground.add(8, "100-1")
    ground.run(min_idle_time_ms=1)
    assert ground.sums() == {"a": 15}
    assert ground.pending() == 0


def test_failed_entry_is_retried_without_blocking_next_entry(ground: Ground) -> None:
    first = ground.add(1, fails=2)
    ground.add(2)
    ground.drain()
    assert ground.pending() == 0
    (moved,) = ground.own(State.PUBLISHED)
    assert moved.headers["penstock-stream-origin"] == f"orders/{first}"
    assert ground.sums() == {"a": 3}
    assert ground.counted() == [1, 2]


def test_failing_entry_is_dead_letter_and_can_be_redriven(ground: Ground) -> None:
    ground.add(1, fails=5)
    ground.add(2)
    ground.drain()
    (dead,) = ground.own(State.DEAD)
    assert (dead.last_error or "").startswith("ConnectionError: not yet\n")
    assert ground.sums() == {"a": 2}
    ground.outbox.store.replay(Selection(queue="streams/total"))
    ground.drain()
    assert (ground.own(State.DEAD), ground.sums()) == ([], {"a": 3})


def test_committed_unacknowledged_entries_are_not_reapplied(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    from penstock.pipeline.streams.sources.valkey import source as valkey_source

    ground.add(1)
    ground.add(2)
    monkeypatch.setattr(valkey_source, "acknowledge", lambda *_: (_ for _ in ()).throw(RuntimeError("killed")))
    with pytest.raises(PipelineError, match="killed"):
        ground.run()
    assert (ground.sums(), ground.pending()) == ({"a": 3}, 2)
    monkeypatch.undo()
    ground.run()
    assert (ground.sums(), ground.pending(), ground.counted()) == ({"a": 3}, 0, [1, 2])
