"""Batch handlers over Arrow tables have the same results as over single events."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock import Streams
from penstock.model.errors import UsageError
from penstock.streams.app import Stream
from penstock.streams.context import KeyState
from penstock.streams.engine.arrow_work import HandlerFailed, TableStates, in_order, is_plain, run_table
from penstock.streams.engine.batch_handlers import BatchContext, States, as_table
from penstock.streams.engine.partition import process_batch
from penstock.streams.event import KEY_HEADER, StreamEvent
from penstock.streams.state.api import PartTransaction, Position, Saved
from penstock.streams.state.registry import open_state

NOW = 1_000.0
COUNTS = {"count": "int64", "sum": "int64"}


def stream(handler: Callable[[Any, BatchContext], None], **options: Any) -> Stream:
    app = Streams("sqlite:///unused.db")
    app.stream("orders", name="total", parts=1, batch="arrow", fields={"amount": "int64"}, **options)(handler)
    return app.streams["total"]


def total(events: "pa.Table", ctx: BatchContext) -> None:
    """Count and sum the amounts by columns, and emit each event, so that the test sees the order of the events."""
    amounts: dict[str, list[int]] = {}
    for key, amount in zip(events["key"].to_pylist(), events["amount"].to_pylist(), strict=True):
        amounts.setdefault(key, []).append(amount)
        ctx.emit("seen", {"key": key, "amount": amount})
    before = ctx.states.table(list(amounts), COUNTS).to_pylist()
    after = [
        {"key": key, "count": (was["count"] or 0) + len(of), "sum": (was["sum"] or 0) + sum(of)}
        for (key, of), was in zip(amounts.items(), before, strict=True)
    ]
    ctx.states.put(pa.Table.from_pylist(after))


def rows(events: Sequence[StreamEvent]) -> "pa.Table":
    """Return the events as a table in the form that Spark passes to a task."""
    count = len(events)
    made = as_table(events, {}).rename_columns({"key": "stream_key"}).drop_columns(["headers"])
    partitions = [event.position and event.position.source_partition for event in events]
    offsets = [event.position and event.position.offset for event in events]
    more: dict[str, Any] = {
        "part": pa.array([0] * count, pa.int32()),
        "key_error": pa.nulls(count, pa.string()),
        "headers": pa.nulls(count, pa.string()),
        "replays": pa.array([event.replays for event in events], pa.int32()),
        "source_partition": pa.array(partitions, pa.string()),
        "offset": pa.array(offsets, pa.int64()),
        "seq": pa.array(range(count), pa.int64()),
    }
    for name, column in more.items():
        made = made.append_column(name, column)
    return made


def placed(key: str, partition: str, offset: int, amount: int) -> StreamEvent:
    return StreamEvent(f"{partition}/{offset}", key, b'{"amount": %d}' % amount, position=Position(partition, offset))


def known_by_id(key: str, number: int, replays: int, amount: int) -> StreamEvent:
    return StreamEvent(f"id-{number}", key, b'{"amount": %d}' % amount, replays=replays)


keys, small, amounts = st.sampled_from(["a", "b", "ü"]), st.integers(0, 6), st.integers(-5, 5)
events = st.one_of(
    st.builds(placed, keys, st.sampled_from(["x", "y"]), small, amounts),
    st.builds(known_by_id, keys, small, st.integers(0, 1), amounts),
)


def in_place(event: StreamEvent) -> tuple[str, int]:
    return (event.position.source_partition, event.position.offset) if event.position else ("", 0)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(batches=st.lists(st.lists(events, min_size=1, max_size=12), min_size=1, max_size=4))
def test_batch_and_event_handlers_have_same_results(batches: list[list[StreamEvent]], tmp_path: Path) -> None:
    """Both ways agree for events that are duplicated, out of order, or mixed with events of earlier batches."""
    handled = stream(total)
    folder = tmp_path / uuid4().hex
    found = []
    for way in ("events", "table"):
        with closing(open_state(f"sqlite:///{folder / way}")) as state:
            started = state.start("total", 1)
            for batch in batches:
                part = state.open_part(started, 0)
                if way == "events":
                    process_batch(part, handled, sorted(batch, key=in_place), NOW)
                else:
                    with part.transaction() as tx:
                        run_table(tx, handled, in_order(rows(batch)), NOW)
                part.close()
            part = state.open_part(started, 0)
            emitted = [event.payload for outgoing in part.outgoing() for event in outgoing.events]
            part.close()
            found.append((dict(state.read("total")), emitted))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("given", "ordered"),
    [
        ("b1 b2 a1 a2", "a1 a2 b1 b2"),
        ("a1 a1 b3", "a1 a1 b3"),
        ("a2 a1", "a1 a2"),
        ("a1 b1 a2", "a1 a2 b1"),
        ("b1 b2 a2 a1", "a1 a2 b1 b2"),
        ("a1", "a1"),
        ("", ""),
        (" ".join(f"{chr(20_100 - n)}1" for n in range(101)), " ".join(f"{chr(n)}1" for n in range(20_000, 20_101))),
    ],
)
def test_events_are_ordered_by_source_partition_and_offset(given: str, ordered: str) -> None:
    found = in_order(rows([placed("ada", place[0], int(place[1]), 1) for place in given.split()]))
    partitions, offsets = found.column("source_partition").to_pylist(), found.column("offset").to_pylist()
    assert [f"{name}{offset}" for name, offset in zip(partitions, offsets, strict=True)] == ordered.split()


def test_handler_gets_same_table_from_arrow_and_events(state: str) -> None:
    seen: list[Any] = []
    handled = stream(lambda events, _ctx: seen.append(events))
    came = StreamEvent(
        "1", "a", b'{"amount": 3}', "placed", {}, datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC), partition_key="a"
    )
    with closing(open_state(state)) as opened:
        part = opened.open_part(opened.start("total", 1), 0)
        with part.transaction() as tx:
            run_table(tx, handled, rows([came]), NOW)
        part.close()
    assert seen[0].to_pylist() == as_table([came], {"amount": "int64"}).to_pylist()
    assert seen[0].schema == as_table([came], {"amount": "int64"}).schema


def test_headers_column_contains_maps(state: str) -> None:
    seen: list[Any] = []
    table = rows([StreamEvent("1", "a", b"{}"), StreamEvent("2", "a", b"{}")])
    at = table.schema.get_field_index("headers")
    table = table.set_column(at, "headers", pa.array(['{"x": "y"}', None], pa.string()))
    with closing(open_state(state)) as opened:
        part = opened.open_part(opened.start("total", 1), 0)
        with part.transaction() as tx:
            run_table(tx, stream(lambda events, _ctx: seen.append(events["headers"].to_pylist())), table, NOW)
        part.close()
    assert seen == [[[("x", "y")], []]]


def test_failed_handler_leaves_no_effects(state: str) -> None:
    def fail(events: "pa.Table", ctx: BatchContext) -> None:
        total(events, ctx)
        ctx.states["a"]["odd"] = object()

    with closing(open_state(state)) as opened:
        part = opened.open_part(opened.start("total", 1), 0)
        with pytest.raises(HandlerFailed) as failure, part.transaction() as tx:
            run_table(tx, stream(fail), rows([placed("a", "x", 1, 5)]), NOW)
        assert isinstance(failure.value.__cause__, UsageError)
        with part.transaction() as tx:
            run_table(tx, stream(total), rows([placed("a", "x", 1, 5)]), NOW)
        part.close()
        assert dict(opened.read("total")) == {"a": Saved(b'{"count":1,"sum":5}')}


def test_state_expires_after_ttl(state: str) -> None:
    handled = stream(total, ttl_seconds=10)
    with closing(open_state(state)) as opened:
        part = opened.open_part(opened.start("total", 1), 0)
        for offset, now in ((1, 1_000.0), (2, 1_005.0), (3, 1_020.0)):
            with part.transaction() as tx:
                run_table(tx, handled, rows([placed("a", "x", offset, 5)]), now)
        part.close()
        assert dict(opened.read("total")) == {"a": Saved(b'{"count":1,"sum":5}', 1_030.0)}


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("stream_key", pa.array([None], pa.string())),
        ("key_error", pa.array(["no key"])),
        ("attempts", pa.array([1], pa.int32())),
        ("headers", pa.array([f'{{"{KEY_HEADER}": "a"}}'])),
    ],
)
def test_failed_or_keyless_events_are_not_plain(column: str, value: Any) -> None:
    table = rows([placed("a", "x", 1, 5)])
    assert is_plain(table)
    assert not is_plain(table.set_column(table.schema.get_field_index(column), column, value))


SAVED = {"a": Saved(b'{"count":1,"sum":2,"name":"x"}'), "b": Saved(b'{"sum":5}', NOW - 1)}


@pytest.fixture
def saved(state: str) -> Iterator[PartTransaction]:
    with closing(open_state(state)) as opened:
        part = opened.open_part(opened.start("total", 1), 0)
        with part.transaction() as tx:
            tx.save(SAVED)
            yield tx
        part.close()


class TestStates:
    """States as columns and by key, in both implementations."""

    @pytest.fixture(params=["objects", "table"])
    def states(self, request: pytest.FixtureRequest, saved: PartTransaction) -> States:
        if request.param == "table":
            return TableStates(pa.array(["b", "a", "c"]), saved, NOW)
        objects = {"a": KeyState(SAVED["a"]), "b": KeyState(), "c": KeyState()}
        return States(objects.__getitem__, list(objects))

    def test_missing_keys_and_fields_are_null(self, states: States) -> None:
        found = states.table(["c", "a", "b"], {"sum": "int64", "name": "string"})
        assert found.to_pylist() == [
            {"sum": None, "name": None},
            {"sum": 2, "name": "x"},
            {"sum": None, "name": None},
        ]

    @pytest.mark.parametrize("kind", ["arrow", "pandas"])
    def test_put_replaces_state(self, states: States, kind: str) -> None:
        given = {
            "key": ["a", "c"],
            "sum": [7, 8],
            "share": [0.5, 1e300],
            "name": ['"\\\n ü', ""],
            "open": [True, False],
        }
        states.put(pa.table(given) if kind == "arrow" else pd.DataFrame(given))
        assert dict(states["a"]) == {"sum": 7, "share": 0.5, "name": '"\\\n ü', "open": True}
        assert dict(states["c"]) == {"sum": 8, "share": 1e300, "name": "", "open": False}
        assert states.table(["c"], {"sum": "int64"}).to_pylist() == [{"sum": 8}]

    def test_put_omits_nulls(self, states: States) -> None:
        states.put(
            pa.table({"key": ["a", "b"], "sum": pa.array([None, 3]), "name": pa.array([None, None], pa.string())})
        )
        assert (dict(states["a"]), dict(states["b"])) == ({}, {"sum": 3})

    def test_column_and_key_access_see_same_state(self, states: States) -> None:
        states["a"]["sum"] = 10
        assert states.table(["a"], {"sum": "int64", "count": "int64"}).to_pylist() == [{"sum": 10, "count": 1}]
        states.put(pa.table({"key": ["a", "b"], "sum": [11, 1]}))
        assert (dict(states["a"]), dict(states["b"])) == ({"sum": 11}, {"sum": 1})
        states["b"]["sum"] += 1
        assert states.table(["b", "a"], {"sum": "int64"}).to_pylist() == [{"sum": 2}, {"sum": 11}]

    def test_keys_outside_batch_are_refused(self, states: States) -> None:
        with pytest.raises(KeyError, match="key 'z' does not occur in this batch"):
            states.table(["a", "z"], {"sum": "int64"})
        with pytest.raises(KeyError, match="key 'z' does not occur in this batch"):
            states.put(pa.table({"key": ["z"], "sum": [1]}))
        with pytest.raises(UsageError, match="missing column key"):
            states.put(pa.table({"sum": [1]}))

    @pytest.mark.parametrize("column", [[float("nan")], [datetime(2026, 1, 1)], [b"bytes"]])
    def test_put_refuses_values_that_json_cannot_encode(self, states: States, column: list[Any]) -> None:
        with pytest.raises(UsageError, match="cannot encode state as JSON"):
            states.put(pa.table({"key": ["a"], "odd": column}))

    def test_empty_tables_are_accepted(self, states: States) -> None:
        assert states.table([], {"sum": "int64"}).num_rows == 0
        states.put(pa.table({"key": ["a"]}))
        assert dict(states["a"]) == {}


def test_only_changed_states_are_saved(saved: PartTransaction) -> None:
    saved.save({"a": Saved(b'{"n":1}'), "b": Saved(b'{"n":2}')})
    states = TableStates(pa.array(["b", "a", "c"]), saved, NOW)
    states["a"].get("n")
    states.put(pa.table({"key": ["c"], "n": [3]}))
    states.put(pa.table({"key": ["b"]}))
    states.save(5.0)
    assert saved.load(["a", "b", "c"]) == {"a": Saved(b'{"n":1}'), "c": Saved(b'{"n":3}', 5.0)}
