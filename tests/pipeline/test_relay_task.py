"""Options of a relay and decisions of its tasks, without Spark."""

import gc
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from socket import socketpair

import pytest

from penstock.model.errors import NotInitialised, StoreError, UnknownScheme, UsageError
from penstock.model.lifecycle import OrderPolicy, State
from penstock.model.outcome import RELEASED, Dead, Retry
from penstock.model.selection import Selection
from penstock.outbox import Outbox, connect
from penstock.pipeline.counts import MAX_ERRORS, SliceCounts
from penstock.pipeline.datasource.sender import (
    FIRST_PIECE,
    PIECE,
    SLOW_SECONDS,
    Dispatch,
    Pace,
    RelayTaskSpec,
    blocked_keys,
)
from penstock.pipeline.relay.driver import run_relay
from penstock.pipeline.relay.spec import RelayOptions
from penstock.pipeline.relay.task import MAX_REFUSALS, deliver, open_resources
from penstock.pipeline.spark.slices import Slice
from penstock.store.sql.store import SqlStore
from penstock.testing.events import delivery


@pytest.mark.parametrize("name", ["batch", "parallelism", "lease_seconds", "slice_seconds", "max_deliveries"])
def test_zero_is_refused_for_numeric_options(name: str) -> None:
    with pytest.raises(UsageError, match=f"^{name} must be greater than 0, got 0$"):
        RelayOptions(store="sqlite://", destination="null:", **{name: 0})  # type: ignore[arg-type]


def test_unknown_destination_scheme_is_refused_by_options() -> None:
    with pytest.raises(UnknownScheme, match="unknown destination scheme 'carrier-pigeon'"):
        RelayOptions(store="sqlite://", destination="carrier-pigeon://loft")


def test_uninitialised_store_is_refused_before_spark_starts(postgres_url: str) -> None:
    with pytest.raises(NotInitialised, match="penstock init"):
        run_relay(RelayOptions(store=postgres_url, destination="null:", once=True))


def pace_of_a_fast_destination() -> Pace:
    pace = Pace()
    while pace.size < PIECE:
        pace.learn(pace.size, 0.001)
    return pace


def test_piece_grows_while_destination_is_fast() -> None:
    pace = Pace()
    assert pace.size == FIRST_PIECE
    pace.learn(FIRST_PIECE, 0.001)
    assert pace.size == 2 * FIRST_PIECE
    pace.learn(2 * FIRST_PIECE, 1.0)
    assert pace.size == 2 * FIRST_PIECE


def test_short_piece_does_not_change_pace() -> None:
    pace = pace_of_a_fast_destination()
    pace.learn(1, 0.001)
    assert pace.size == PIECE


def test_piece_shrinks_if_events_are_slow() -> None:
    pace = pace_of_a_fast_destination()
    for _ in range(10):
        pace.learn(pace.size, pace.size * 0.1)
    assert pace.size * 0.1 <= SLOW_SECONDS


def test_piece_does_not_shrink_if_only_calls_are_slow() -> None:
    pace = pace_of_a_fast_destination()
    sizes = []
    for _ in range(20):
        pace.learn(pace.size, 3.0)
        sizes.append(pace.size)
    assert min(sizes) >= PIECE // 4


def test_released_event_blocks_key_under_both_policies() -> None:
    failed, behind, dead = delivery(ordering_key="a"), delivery(ordering_key="b"), delivery(ordering_key="c")
    outcomes = {failed.seq: Retry("down"), behind.seq: RELEASED, dead.seq: Dead("bad")}
    assert blocked_keys([failed, behind, dead], outcomes, OrderPolicy.BLOCK) == {"a", "b"}
    assert blocked_keys([failed, behind, dead], outcomes, OrderPolicy.SKIP) == {"b"}


def test_slice_counts_keep_limited_distinct_errors() -> None:
    counts = SliceCounts()
    for number in range(1_000):
        counts.note_error(f"trouble {number % 100}")
    assert counts.errors == [f"trouble {number}" for number in range(MAX_ERRORS)]


@pytest.fixture
def outbox(tmp_path: Path) -> Iterator[Outbox]:
    with connect(f"sqlite:///{tmp_path}/penstock.db") as made:
        made.store.initialise()
        yield made


def drain(outbox: Outbox) -> SliceCounts:
    """Run a task of a draining relay, one event at a time."""
    assert isinstance(outbox.store, SqlStore)
    until = outbox.store.now() + timedelta(seconds=1)
    spec = RelayTaskSpec(
        store=outbox.store.url,
        queue="outbox",
        batch=1,
        lease_seconds=60.0,
        dispatch=Dispatch(destination="null:"),
        until=until,
    )
    here, there = socketpair()
    threshold = gc.get_threshold()
    try:
        with here, there:
            return deliver(spec, Slice(0, 0, 60.0, here))
    finally:
        open_resources(spec).let_go()
        gc.set_threshold(*threshold)


def refuse_to_settle(outbox: Outbox, condition: str) -> None:
    with outbox.store.transaction() as connection:
        connection.exec_driver_sql(
            f"CREATE TRIGGER refusing BEFORE INSERT ON penstock_archive WHEN {condition} "
            "BEGIN SELECT RAISE(ABORT, 'not this one'); END"
        )


def test_event_refused_by_store_does_not_stop_others(outbox: Outbox) -> None:
    outbox.emit_many([outbox.event("x", str(number)) for number in range(5)])
    refuse_to_settle(outbox, "NEW.seq IN (1, 4)")
    counts = drain(outbox)
    assert (counts.claimed, counts.published, counts.drained) == (5, 3, True)
    (error,) = counts.errors
    assert error.endswith("rejected the statement: not this one")


def test_draining_relay_ends_if_store_refuses_all_events(outbox: Outbox) -> None:
    outbox.emit_many([outbox.event("x", str(number)) for number in range(2 * MAX_REFUSALS)])
    refuse_to_settle(outbox, "true")
    with pytest.raises(StoreError, match="rejected the statement: not this one"):
        drain(outbox)
    assert len(outbox.store.find(Selection(states=frozenset({State.CLAIMED}))).records) == MAX_REFUSALS


def test_relay_ends_if_tables_are_dropped(outbox: Outbox) -> None:
    outbox.emit("x")
    with outbox.store.transaction() as connection:
        connection.exec_driver_sql("DROP TABLE penstock_leases")
    with pytest.raises(NotInitialised, match="penstock init"):
        drain(outbox)
