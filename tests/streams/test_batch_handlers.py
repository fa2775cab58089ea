"""Batch handlers have the same guarantees as handlers of single events."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import Streams
from penstock.model.errors import UsageError
from penstock.streams.engine.batch_handlers import BatchContext, as_table
from penstock.streams.event import StreamEvent
from penstock.testing.streams import CRASH, LOST_COMMIT, StreamHarness


def application(kind: str) -> Streams:
    app = Streams("sqlite:///unused.db")

    @app.stream("orders", key=lambda event: event.json()["key"], parts=3, batch=kind, fields={"amount": "int64"})
    def total(events: Any, ctx: BatchContext) -> None:
        keys, amounts = events["key"], events["amount"]
        if kind == "arrow":
            keys, amounts = keys.to_pylist(), amounts.to_pylist()
        for key, amount in zip(keys, amounts, strict=True):
            state = ctx.states[key]
            state["sum"] = state.get("sum", 0) + int(amount)
            ctx.emit("total.changed", {"amount": int(amount)})
            if amount < 0:
                raise ValueError("negative")

    return app


@pytest.fixture(params=["arrow", "pandas"])
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StreamHarness]:
    made = StreamHarness(application(request.param), "total", f"sqlite:///{tmp_path}/state")
    yield made
    made.close()


def order(amount: int, key: str = "a") -> dict[str, object]:
    return {"key": key, "amount": amount}


def emitted(harness: StreamHarness) -> list[int]:
    return sorted(int(event.payload.split(b":")[1][:-1]) for event in harness.report.emitted)


@pytest.mark.parametrize("crash", [CRASH, LOST_COMMIT])
def test_effects_happen_once_after_crash(harness: StreamHarness, crash: str) -> None:
    harness.run([order(1), order(2, "b"), crash, order(3), crash, order(4, "b")])
    assert (harness.state("a"), harness.state("b")) == ({"sum": 4}, {"sum": 6})
    assert emitted(harness) == [1, 2, 3, 4]


def test_failing_event_becomes_dead_letter_without_effects(harness: StreamHarness) -> None:
    report = harness.run([order(1), order(2), order(-5), order(4), order(-6, "b"), order(7, "b")])
    assert (harness.state("a"), harness.state("b")) == ({"sum": 7}, {"sum": 7})
    assert emitted(harness) == [1, 2, 4, 7]
    assert sorted(event.json()["amount"] for event, _ in report.dead) == [-6, -5]
    assert all(error.startswith("ValueError: negative") for _, error in report.dead)


@pytest.mark.parametrize("payload", [b"", b" ", b"{", b'{"amount": 1} {"amount": 2}', b'{"amount": "much"}', b"[1]"])
def test_event_with_unusable_payload_fails_alone(harness: StreamHarness, payload: bytes) -> None:
    report = harness.run([order(1), StreamEvent("odd", "a", payload=payload), order(2)])
    assert harness.state("a") == {"sum": 3}
    assert [event.event_id for event, _ in report.dead] == ["odd"]


def test_each_payload_must_be_one_json_object() -> None:
    events = [StreamEvent("1", "a", payload=b""), StreamEvent("2", "a", payload=b'{"amount":1}{"amount":2}')]
    with pytest.raises(ValueError, match="JSON object"):
        as_table(events, {"amount": "int64"})


def test_table_has_one_row_per_event() -> None:
    events = [StreamEvent("1", "a", payload=b'{\n"amount": 5, "other": [1]}', headers={"x": "y"}, attempts=2)]
    (row,) = as_table(events, {"amount": "int64", "missing": "string"}).to_pylist()
    assert (row["event_id"], row["key"], row["amount"], row["missing"], row["attempts"]) == ("1", "a", 5, None, 2)
    assert row["headers"] == [("x", "y")]
    assert as_table(events, {}).column_names[-1] == "ordering_key"


def test_invalid_batch_options_are_usage_errors() -> None:
    app = Streams("sqlite:///unused.db")

    @app.stream("orders", batch="arrow")
    def total(events: Any, ctx: BatchContext) -> None: ...

    assert app.streams["total"].batch == "arrow"
    with pytest.raises(UsageError, match="unknown batch 'list'; expected one of arrow, pandas"):
        app.stream("orders", name="other", batch="list")(total)
    with pytest.raises(UsageError, match="unknown type 'decimal or so'"):
        app.stream("orders", name="other", batch="arrow", fields={"amount": "decimal or so"})(total)
    with pytest.raises(UsageError, match="fields= needs batch="):
        app.stream("orders", name="other", fields={"amount": "int64"})(total)


def test_state_of_key_outside_batch_is_refused(tmp_path: Path) -> None:
    app = Streams("sqlite:///unused.db")

    @app.stream("orders", key=lambda event: event.json()["key"], batch="arrow", max_retries=0)
    def total(events: Any, ctx: BatchContext) -> None:
        assert list(ctx.states) == ["a"]
        assert len(ctx.states) == 1
        ctx.states["b"]["sum"] = 1

    harness = StreamHarness(app, "total", f"sqlite:///{tmp_path}/state")
    report = harness.run([order(1)])
    assert "key 'b' does not occur in this batch" in report.dead[0][1]
    harness.close()
