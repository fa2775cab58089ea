"""Run a stream in a separate process that tests kill. It sums by key, emits an event per order, and fails some events.

python stream_processes.py STORE STATE CORES
"""

import subprocess
import sys
from collections import Counter
from pathlib import Path

from penstock import Outbox, Streams
from penstock.model.lifecycle import State
from penstock.model.selection import Selection
from penstock.streams.context import Context, KeyState
from penstock.streams.engine.work import is_users
from penstock.streams.event import StreamEvent
from penstock.streams.state.registry import open_state

EVENTS = 1_000
KEYS = 20


def application(store: str, state: str) -> Streams:
    app = Streams(store, state=state)

    @app.stream("orders", parts=4, retry_seconds=0.05, lease_seconds=10)
    def total(event: StreamEvent, ctx: Context) -> None:
        order = event.json()
        ctx.state["sum"] = ctx.state.get("sum", 0) + order["amount"]
        ctx.emit("order.counted", {"number": order["number"]}, queue="counted")
        if order["number"] % 50 == 7:
            raise ValueError("never")
        if order["number"] % 50 == 8 and event.attempts == 0:
            raise ConnectionError("not yet")

    return app


def start(store: str, state: str, cores: int) -> "subprocess.Popen[bytes]":
    command = [sys.executable, str(Path(__file__)), store, state, str(cores)]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)


def emit_orders(outbox: Outbox) -> None:
    outbox.emit_many(
        outbox.event("order.placed", {"number": n, "amount": n}, queue="orders", partition_key=f"customer {n % KEYS}")
        for n in range(EVENTS)
    )


def unsettled(outbox: Outbox) -> int:
    """Return the number of events that are pending or claimed, including those in the retry queue."""
    live = frozenset({State.PENDING, State.CLAIMED})
    queues = ("orders", "streams/total")
    return sum(len(outbox.store.find(Selection(queue=queue, states=live), limit=10_000).records) for queue in queues)


def check(outbox: Outbox, state: str) -> None:
    """Check that the sums are exact, each event was emitted once, and exactly the expected events are dead."""
    store = open_state(state)
    found = {key: dict(KeyState(saved))["sum"] for key, saved in store.read("total") if is_users(key)}
    assert found == _expected()
    store.close()
    counted = outbox.store.find(Selection(queue="counted"), limit=10_000).records
    numbers = Counter(int(record.payload.split(b":")[1][:-1]) for record in counted)
    assert numbers == dict.fromkeys((n for n in range(EVENTS) if n % 50 != 7), 1)
    dead = outbox.store.find(Selection(queue="orders", states=frozenset({State.DEAD})), limit=1_000).records
    assert sorted(record.payload for record in dead) == sorted(
        b'{"number":%d,"amount":%d}' % (n, n) for n in range(EVENTS) if n % 50 == 7
    )
    assert all(record.last_error and record.last_error.startswith("ValueError: never\n") for record in dead)


def _expected() -> dict[str, int]:
    sums: Counter[str] = Counter()
    for number in range(EVENTS):
        if number % 50 != 7:
            sums[f"customer {number % KEYS}"] += number
    return dict(sums)


if __name__ == "__main__":
    from penstock.pipeline.streams.driver import run_streams

    run_streams(application(sys.argv[1], sys.argv[2]), master=f"local[{sys.argv[3]}]")
