"""Relays with a user's step, in this process, on the shared Spark session."""

import json
import logging
import threading
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from relay_processes import assert_delivered, emit, lines
from step_env import Ground
from step_functions import even, unchanged

from penstock.cli.commands.relay import summary
from penstock.model.errors import UsageError
from penstock.model.lifecycle import State
from penstock.model.outcome import Dropped
from penstock.model.retry import RetryPolicy
from penstock.pipeline.relay.spec import RelayOptions
from penstock.pipeline.spark.slices import _LOOK_SECONDS
from tests.support.processes import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

WAIT_SECONDS = 180.0


def number_of() -> Any:
    from pyspark.sql import functions as on

    return on.get_json_object(on.col("payload").cast("string"), "$.number").cast("int")


# Permitted steps


@pytest.mark.parametrize("step", ["step_functions:unchanged", unchanged])
def test_identity_step_publishes_all_events_unchanged(ground: Ground, step: Any) -> None:
    ids = emit(ground.outbox, 2_500, headers={"origin": "shop"}, partition_key="eu", priority=3)
    report = ground.relay(step)
    assert_delivered(ids, ground.published(), repeats=0)
    assert (report.claimed, report.published, report.dead, report.lost) == (2_500, 2_500, 0, 0)
    assert ground.states() == {State.PUBLISHED: 2_500}
    ground.assert_nothing_held()
    record, line = ground.records()[0], lines(ground.files)
    (found,) = [one for one in line if one["event_id"] == str(record.event_id)]
    assert (found["seq"], found["headers"], found["priority"]) == (record.seq, dict(record.headers), 3)
    assert (found["partition_key"], found["created_at"]) == ("eu", record.created_at.isoformat())


def test_filter_step_works_on_embedded_store(embedded: Ground) -> None:
    emit(embedded.outbox, 100)
    report = embedded.relay(even, parallelism=None)
    assert (report.published, report.dead) == (50, 50)
    assert embedded.numbers() == list(range(0, 100, 2))
    assert embedded.states() == {State.PUBLISHED: 50, State.DEAD: 50}
    embedded.assert_nothing_held()


@pytest.mark.parametrize("dropped", list(Dropped))
def test_dropped_events_are_dead_discarded_or_released(ground: Ground, dropped: Dropped) -> None:
    emit(ground.outbox, 100)
    report = ground.relay(even, dropped=dropped)
    assert ground.numbers() == list(range(0, 100, 2))
    ground.assert_nothing_held()
    odd = [record for record in ground.records() if json.loads(record.payload)["number"] % 2]
    match dropped:
        case Dropped.DEAD:
            assert {(record.state, record.last_error) for record in odd} == {(State.DEAD, "dropped by a step")}
            assert report.dead == 50
        case Dropped.DISCARD:
            assert {record.state for record in odd} == {State.PUBLISHED}
            assert (report.published, report.discarded, report.dead) == (50, 50, 0)
        case Dropped.RELEASE:
            assert {(one.state, one.attempts, one.deliveries) for one in odd} == {(State.PENDING, 0, 0)}


def test_discarded_events_are_counted_in_output_and_log(ground: Ground, caplog: pytest.LogCaptureFixture) -> None:
    emit(ground.outbox, 100)
    with caplog.at_level(logging.INFO, "penstock"):
        report = ground.relay(lambda events: events.where("seq < 0"), dropped=Dropped.DISCARD)
    assert summary(report).startswith("100 discarded in ")
    assert ground.numbers() == []
    messages = [record.getMessage() for record in caplog.records]
    assert any("relay_stopped" in line and "discarded=100" in line and "published=0" in line for line in messages), (
        messages
    )
    assert any(line.startswith("slice") and "discarded=" in line and "published=" not in line for line in messages), (
        messages
    )


def test_limit_step_publishes_events_in_portions(ground: Ground) -> None:
    ids = emit(ground.outbox, 50)
    ground.relay(lambda events: events.limit(20), dropped=Dropped.RELEASE)
    assert_delivered(ids, ground.published(), repeats=0)
    assert ground.states() == {State.PUBLISHED: 50}


def test_draining_relay_does_not_end_during_batch(ground: Ground) -> None:
    """The store looks drained while all ready events are claimed; some of them are released afterwards."""
    ids = emit(ground.outbox, 50)
    looks = 3

    def take_long(events: "DataFrame") -> "DataFrame":
        threading.Event().wait(looks * _LOOK_SECONDS)
        return events.limit(20)

    ground.relay(take_long, dropped=Dropped.RELEASE)
    assert_delivered(ids, ground.published(), repeats=0)
    assert ground.states() == {State.PUBLISHED: 50}


@pytest.mark.parametrize(
    "reshape",
    [lambda events: events.coalesce(1), lambda events: events.repartition(5)],
    ids=["coalesce", "repartition"],
)
def test_step_can_repartition_rows(ground: Ground, reshape: Any) -> None:
    ids = emit(ground.outbox, 1_000)
    ground.relay(reshape)
    assert_delivered(ids, ground.published(), repeats=0)
    assert ground.states() == {State.PUBLISHED: 1_000}


def test_exploded_copies_are_published_under_one_event_id(ground: Ground) -> None:
    from pyspark.sql import functions as on

    ids = emit(ground.outbox, 100)

    def three_of_each(events: "DataFrame") -> "DataFrame":
        copies = events.withColumn("copy", on.explode(on.array(on.lit("a"), on.lit("b"), on.lit("c"))))
        return copies.withColumn("payload", on.col("copy")).repartition(3)

    ground.relay(three_of_each)
    assert ground.published() == dict.fromkeys(map(str, ids), 3)
    assert Counter(line["payload"] for line in lines(ground.files)) == {"a": 100, "b": 100, "c": 100}
    assert ground.states() == {State.PUBLISHED: 100}


def test_join_changes_published_but_not_stored_events(ground: Ground) -> None:
    from pyspark.sql import functions as on

    emit(ground.outbox, 30)

    def name_them(events: "DataFrame") -> "DataFrame":
        names = events.sparkSession.createDataFrame([(0, "zero"), (1, "one")], "remainder INT, name STRING")
        joined = events.withColumn("remainder", number_of() % 3).join(names, "remainder")
        return joined.withColumn("event_type", on.concat(on.lit("numbered."), "name")).withColumn(
            "payload", on.to_json(on.struct("name"))
        )

    report = ground.relay(name_them)
    assert (report.published, report.dead) == (20, 10)
    published = Counter((line["topic"], line["payload"]) for line in lines(ground.files))
    assert published == {("numbered.zero", '{"name":"zero"}'): 10, ("numbered.one", '{"name":"one"}'): 10}
    assert {record.event_type for record in ground.records()} == {"crash.tested"}
    assert sorted(json.loads(record.payload)["number"] for record in ground.records()) == list(range(30))


def test_order_of_keys_survives_shuffling_step(ground: Ground) -> None:
    from pyspark.sql import functions as on

    keys = [f"customer-{number}" for number in range(10)]
    ground.outbox.emit_many(
        ground.outbox.event("order.changed", {"number": number}, ordering_key=key)
        for number in range(20)
        for key in keys
    )

    def shuffle(events: "DataFrame") -> "DataFrame":
        copies = events.withColumn("copy", on.explode(on.array(on.lit(0), on.lit(1))))
        return copies.orderBy(on.rand(7)).repartition(4)

    ground.relay(shuffle)
    for key in keys:
        came = [json.loads(line["payload"])["number"] for line in lines(ground.files) if line["ordering_key"] == key]
        assert came == sorted([*range(20), *range(20)])


def test_step_can_drop_optional_columns(ground: Ground) -> None:
    emit(ground.outbox, 10, headers={"origin": "shop"}, priority=4)
    ground.relay(lambda events: events.select("payload", "seq", "event_type", "event_id"))
    assert {(line["priority"], line["deliveries"], len(line["headers"])) for line in lines(ground.files)} == {(4, 1, 0)}
    assert ground.numbers() == list(range(10))


# Several destinations


def by_parity(ground: Ground) -> Callable[["DataFrame"], "dict[str, DataFrame]"]:
    """Return a step that sends even numbers here, odd numbers there, and multiples of four to both."""
    return lambda events: {
        f"file://{ground.folder}/here": events.where(number_of() % 2 == 0),
        f"file://{ground.folder}/there": events.where((number_of() % 2 == 1) | (number_of() % 4 == 0)),
    }


def test_step_can_send_batch_to_several_destinations(ground: Ground) -> None:
    emit(ground.outbox, 100)
    report = ground.relay(by_parity(ground))
    assert ground.numbers("here") == list(range(0, 100, 2))
    assert ground.numbers("there") == sorted([*range(1, 100, 2), *range(0, 100, 4)])
    assert (report.published, report.dead) == (100, 0)


def test_failing_destination_repeats_events_at_all_destinations(ground: Ground) -> None:
    emit(ground.outbox, 100)
    (ground.folder / "there").write_text("in the way")
    report = ground.relay(by_parity(ground), retry=RetryPolicy.constant(0.5))
    tries = max(1, report.retried // 75)  # on a slow machine a retry may fall due before the relay has drained
    assert (report.published, report.retried) == (25, 75 * tries)
    assert ground.states() == {State.PUBLISHED: 25, State.PENDING: 75}
    (ground.folder / "there").unlink()
    assert wait_until(lambda: ground.outbox.store.stats().total("ready") == 75, WAIT_SECONDS)
    assert ground.relay(by_parity(ground)).published == 75
    assert ground.numbers("there") == sorted([*range(1, 100, 2), *range(0, 100, 4)])
    assert ground.numbers("here") == sorted([*range(0, 100, 2), *tries * [*range(0, 100, 4)]])


# Rejected steps


def error_of(ground: Ground, step: Any) -> str:
    """Run a relay with the step; return its one-line error. Assert that no event was published or is still claimed."""
    emit(ground.outbox, 10)
    with pytest.raises(UsageError) as refused:
        ground.relay(step)
    assert not ground.files.exists()
    assert {(one.state, one.attempts, one.deliveries) for one in ground.records()} == {(State.PENDING, 0, 0)}
    ground.assert_nothing_held()
    return str(refused.value)


def test_missing_columns_are_named_before_publishing(ground: Ground) -> None:
    error = error_of(ground, lambda events: events.drop("seq", "payload"))
    assert error == (
        f"missing columns in the step's result for file://{ground.files}: seq, payload; "
        "a step must keep seq, event_id, event_type, payload"
    )


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (
            lambda _: None,
            "step must return a DataFrame or a mapping from URLs to DataFrames, got NoneType",
        ),
        (lambda _: {"null:": 7}, "or a mapping from URLs to DataFrames, got int for null:"),
        (
            lambda _: {"nats://ada:secret@host": 7},
            "or a mapping from URLs to DataFrames, got int for nats://ada:***@host",
        ),
        (lambda events: {"pigeon://x": events}, "unknown destination scheme 'pigeon'"),
    ],
)
def test_invalid_step_result_is_usage_error(ground: Ground, step: Any, message: str) -> None:
    assert message in error_of(ground, step)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("steps", "invalid step 'steps'; expected a name such as shop.steps:only_paid"),
        ("no_such_module:f", "module 'no_such_module' not found in "),
        ("step_functions:nothing", "module 'step_functions' has no 'nothing'; existing steps: step_functions:"),
        (
            "step_functions:NO_FUNCTION",
            "'step_functions:NO_FUNCTION' must be a step, got int; existing steps: ",
        ),
    ],
)
def test_unknown_step_is_usage_error(step: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        RelayOptions(store="sqlite:///x.db", destination="null:", step=step)
    assert message in str(refused.value)
