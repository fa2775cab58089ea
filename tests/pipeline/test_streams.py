"""Streams on Spark: state, emitted events and dead letters are exactly what they must be, whatever is killed."""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from stream_processes import KEYS, application, start

from penstock import Outbox, connect
from penstock.lifecycle import State
from penstock.pipeline.stores import close_stores
from penstock.pipeline.streaming import run_streams
from penstock.store.base import Selection
from penstock.streams.context import KeyState
from penstock.streams.engine import is_users
from penstock.streams.state import open_state

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

EVENTS = 1_000
SECONDS = 400.0


@pytest.fixture(params=["sqlite", "rocksdb", "postgresql"])
def state(request: pytest.FixtureRequest, tmp_path: Path, postgres_url: str) -> str:
    return postgres_url if request.param == "postgresql" else f"{request.param}:///{tmp_path / 'state'}"


@pytest.fixture
def outbox(postgres_url: str) -> Iterator[Outbox]:
    with connect(postgres_url) as made:
        made.store.initialise()
        yield made
    close_stores()


def emit_orders(outbox: Outbox) -> None:
    outbox.emit_many(
        outbox.event("order.placed", {"number": n, "amount": n}, queue="orders", partition_key=f"customer {n % KEYS}")
        for n in range(EVENTS)
    )


def expected() -> dict[str, int]:
    sums: Counter[str] = Counter()
    for number in range(EVENTS):
        if number % 50 != 7:
            sums[f"customer {number % KEYS}"] += number
    return dict(sums)


def check(outbox: Outbox, state: str) -> None:
    """To the last digit: sums, emitted events once each, exactly the dead letters that must be."""
    store = open_state(state)
    found = {key: dict(KeyState(saved))["sum"] for key, saved in store.read("total") if is_users(key)}
    assert found == expected()
    store.close()
    counted = outbox.store.find(Selection(queue="counted"), limit=10_000).records
    numbers = Counter(int(record.payload.split(b":")[1][:-1]) for record in counted)
    assert numbers == dict.fromkeys((n for n in range(EVENTS) if n % 50 != 7), 1)
    dead = outbox.store.find(Selection(queue="orders", states=frozenset({State.DEAD})), limit=1_000).records
    assert sorted(record.payload for record in dead) == sorted(
        b'{"number":%d,"amount":%d}' % (n, n) for n in range(EVENTS) if n % 50 == 7
    )
    assert all(record.last_error and record.last_error.startswith("ValueError: never\n") for record in dead)


def unsettled(outbox: Outbox) -> int:
    live = frozenset({State.PENDING, State.CLAIMED})
    return len(outbox.store.find(Selection(queue="orders", states=live), limit=10_000).records)


def test_sums_are_right(spark: "SparkSession", outbox: Outbox, postgres_url: str, state: str) -> None:
    emit_orders(outbox)
    app = application(postgres_url, state)
    until = time.monotonic() + SECONDS
    while unsettled(outbox) and time.monotonic() < until:
        run_streams(app, spark=spark, once=True)
    check(outbox, state)


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.xfail(reason="seen to run out of time once, beside other Sparks, and not yet understood", strict=False)
def test_killed_at_random(outbox: Outbox, postgres_url: str, state: str) -> None:
    """Whole processes, Spark and all, on one core and on two, their checkpoints lost with each; sums stay right."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    emit_orders(outbox)
    until = time.monotonic() + SECONDS
    for _ in range(3):
        process = start(postgres_url, state, chance.choice([1, 2]))
        moved = unsettled(outbox)
        while unsettled(outbox) == moved and moved and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(chance.uniform(0, 1.5))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        _expire(outbox)
    process = start(postgres_url, state, 2)
    try:
        while unsettled(outbox) and time.monotonic() < until:
            if process.poll() is not None:  # a zombie had the part: it gave up, and is started again
                process = start(postgres_url, state, 2)
            outbox.store.reap()
            time.sleep(0.2)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert not unsettled(outbox), f"not done within {SECONDS:g} s"
    check(outbox, state)


def _expire(outbox: Outbox) -> None:
    """What the dead held comes back at once, and not after its lease of minutes."""
    with outbox.store.transaction() as connection:  # type: ignore[attr-defined]
        connection.exec_driver_sql("UPDATE penstock_leases SET expires_at = now() WHERE closed_at IS NULL")
    outbox.store.reap()
