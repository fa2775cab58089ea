"""Streams over streaming DataFrames of new files and of generated rows."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from step_env import Ground
from stream_env import DEAD, LIVE, Shop, remember

from penstock.model.errors import PenstockError, PipelineError, UsageError
from penstock.model.selection import Selection
from penstock.streams.context import Context
from penstock.streams.event import StreamEvent
from penstock.streams.sources import Frame
from tests.support.files import write_whole

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

Open = Callable[["SparkSession"], "DataFrame"]


def json_files(folder: Path, schema: str) -> Open:
    folder.mkdir(exist_ok=True)
    return lambda spark: spark.readStream.schema(schema).json(str(folder))


def write(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    write_whole(folder / f"{name}.json", "".join(json.dumps(row) + "\n" for row in rows))


def orders(numbers: range) -> list[dict[str, Any]]:
    return [
        {"event_id": f"order {n}", "partition_key": f"customer {n % 3}", "number": n, "line": "shop", "offset": n}
        for n in numbers
    ]


@pytest.mark.parametrize("kept", [True, False], ids=["checkpoint kept", "checkpoint lost"])
@pytest.mark.parametrize("known_by", ["event_id STRING", "line STRING, offset BIGINT"])
def test_rows_of_new_files_are_applied_once(
    spark: "SparkSession", embedded: Ground, tmp_path: Path, known_by: str, kept: bool
) -> None:
    source = Frame(json_files(tmp_path / "in", f"{known_by}, partition_key STRING, number INT"))
    shop = Shop(spark, embedded, source)
    for turn in range(2):
        write(tmp_path / "in", f"part-{turn}", orders(range(turn * 30, turn * 30 + 30)))
        shop.run(tmp_path / ("checkpoint" if kept else f"checkpoint {turn}"))
    seen = shop.seen()
    assert {key: sorted(numbers) for key, numbers in seen.items()} == {
        f"customer {rest}": list(range(rest, 60, 3)) for rest in range(3)
    }
    if known_by.startswith("line"):
        assert all(numbers == sorted(numbers) for numbers in seen.values())


def test_rows_with_offsets_are_applied_once_in_order(spark: "SparkSession", embedded: Ground, tmp_path: Path) -> None:
    source = Frame(json_files(tmp_path / "in", "line STRING, offset BIGINT, number INT"))
    shop = Shop(spark, embedded, source, key=lambda event: "all")
    write(tmp_path / "in", "first", list(reversed(orders(range(20)))))
    write(tmp_path / "in", "second", orders(range(10, 30)))
    shop.run()
    assert shop.seen() == {"all": list(range(30))}


def test_all_event_fields_are_read_from_parquet(spark: "SparkSession", embedded: Ground, tmp_path: Path) -> None:
    schema = (
        "event_id STRING, event_type STRING, payload BINARY, headers MAP<STRING, STRING>, partition_key STRING, "
        "ordering_key STRING, created_at TIMESTAMP, lease STRING, seq INT"
    )
    row = "'a' event_id, 'order.placed' event_type, X'ff00' payload, map('n', '1', 'gone', null) headers"
    more = "'ada' partition_key, 'o' ordering_key, timestamp '2026-01-02 03:04:05Z' created_at, 'none' lease, 7 seq"
    spark.sql(f"SELECT {row}, {more}").write.parquet(f"{tmp_path}/in")

    def look(event: StreamEvent, ctx: Context) -> None:
        fields = (event.event_id, event.event_type, event.payload.hex(), dict(event.headers), event.ordering_key)
        ctx.state["seen"] = [*map(str, fields), event.created_at.timestamp() if event.created_at else None]

    source = Frame(lambda session: session.readStream.schema(schema).parquet(f"{tmp_path}/in"))
    shop = Shop(spark, embedded, source, look)
    shop.run()
    assert shop.seen() == {"ada": ["a", "order.placed", "ff00", "{'n': '1'}", "o", 1767323045.0]}


@pytest.mark.parametrize(
    ("schema", "row", "payload"),
    [
        ("a INT, `b.c` STRING, seq INT", {"a": 1, "seq": 7}, {"a": 1, "b.c": None, "seq": 7}),
        ("payload STRING, a INT", {"payload": '{"p": 1}', "a": 2}, {"p": 1}),
        ("payload STRUCT<p: INT, q: INT>", {"payload": {"p": 1}}, {"p": 1, "q": None}),
        ("payload ARRAY<INT>", {"payload": [1, 2]}, [1, 2]),
    ],
    ids=["other columns", "text", "struct", "array"],
)
def test_payload_is_payload_column_or_other_columns(
    spark: "SparkSession", embedded: Ground, tmp_path: Path, schema: str, row: dict[str, Any], payload: Any
) -> None:
    def look(event: StreamEvent, ctx: Context) -> None:
        ctx.state["seen"] = event.json()

    source = Frame(json_files(tmp_path / "in", f"event_id STRING, {schema}"))
    shop = Shop(spark, embedded, source, look, key=lambda event: "all")
    write(tmp_path / "in", "one", [{"event_id": "a", **row}])
    shop.run()
    assert shop.seen() == {"all": payload}


def test_failed_events_are_retried_dead_and_redriven(spark: "SparkSession", embedded: Ground, tmp_path: Path) -> None:
    """Failed events are retried, dead and replayed in the retry queue, because a DataFrame has no retries."""
    mended = tmp_path / "mended"

    def fail(event: StreamEvent, ctx: Context) -> None:
        number = event.json()["number"]
        if number == 4 and not mended.exists():
            raise ValueError("never")
        if number == 5 and not event.moved:
            raise ConnectionError("not yet")
        remember(event, ctx)

    schema = "event_id STRING, partition_key STRING, headers MAP<STRING, STRING>, number INT"
    shop = Shop(spark, embedded, Frame(json_files(tmp_path / "in", schema)), fail, max_retries=1)
    forged = {"headers": {"penstock-stream-key": "another's", "colour": "red"}}
    write(tmp_path / "in", "one", [row | forged for row in orders(range(10))])
    shop.run_until(lambda: not shop.records(LIVE) and bool(shop.records(DEAD)), tmp_path / "checkpoint")
    assert {key: sorted(numbers) for key, numbers in shop.seen().items()} == {
        "customer 0": [0, 3, 6, 9],
        "customer 1": [1, 7],
        "customer 2": [2, 5, 8],
    }
    (dead,) = shop.records(DEAD)
    assert dead.last_error.startswith("ValueError: never\n")
    assert dead.headers == {
        "colour": "red",
        "penstock-stream": "shop",
        "penstock-stream-key": "customer 1",
        "penstock-stream-origin": "order 4",
    }
    mended.touch()
    assert embedded.outbox.store.replay(Selection(queue="streams/shop", states=DEAD)) == 1
    shop.run_until(lambda: not shop.records(LIVE), tmp_path / "checkpoint")
    assert sorted(shop.seen()["customer 1"]) == [1, 4, 7]
    assert not shop.records(DEAD)


def test_rate_source_values_are_applied_once(spark: "SparkSession", embedded: Ground, tmp_path: Path) -> None:
    """The rate source never ends and restarts its count without its checkpoint; each number still counts once."""

    def rate(session: "SparkSession") -> "DataFrame":
        made = session.readStream.format("rate").option("rowsPerSecond", 50).load()
        return made.selectExpr(
            "'rate' AS line", "value AS offset", "value AS number", "CAST(value % 2 AS STRING) AS partition_key"
        )

    shop = Shop(spark, embedded, Frame(rate))
    shop.run_beside(lambda: highest(shop) > 20)
    before = highest(shop)
    shop.run_beside(lambda: highest(shop) > before + 20)
    for rest in ("0", "1"):
        numbers = shop.seen()[rest]
        assert numbers == list(range(int(rest), numbers[-1] + 1, 2))


def highest(shop: Shop) -> int:
    return max((numbers[-1] for numbers in shop.seen().values()), default=0)


NOT_USABLE: dict[str, tuple[Any, type[PenstockError], str]] = {
    "not streaming": (lambda spark: spark.range(1), UsageError, "streaming DataFrame"),
    "no DataFrame": (lambda spark: None, UsageError, "streaming DataFrame"),
    "no id": ("number INT", UsageError, "event_id, or line and offset"),
    "half a position": ("line STRING, number INT", UsageError, "event_id, or line and offset"),
    "no payload": ("event_id STRING, partition_key STRING", UsageError, "missing columns of the DataFrame: payload"),
    "headers that are none": ("event_id STRING, headers STRING, number INT", UsageError, "a map of strings"),
    "a row without id": ("event_id STRING, number INT", PipelineError, "has no event_id"),
    "a row without line": ("line STRING, offset BIGINT, number INT", PipelineError, "has no line"),
}


@pytest.mark.parametrize("case", NOT_USABLE)
def test_unusable_dataframe_source_is_named_in_error(
    spark: "SparkSession", embedded: Ground, tmp_path: Path, case: str
) -> None:
    given, kind, message = NOT_USABLE[case]
    open_frame = json_files(tmp_path / "in", given) if isinstance(given, str) else given
    (tmp_path / "in").mkdir(exist_ok=True)
    write(tmp_path / "in", "one", [{"number": 1}])
    with pytest.raises(kind, match=message):
        Shop(spark, embedded, Frame(open_frame)).run()


def test_negative_offset_is_refused(spark: "SparkSession", embedded: Ground, tmp_path: Path) -> None:
    """A negative offset is below every offset in the state, so its event would never be processed."""
    source = Frame(json_files(tmp_path / "in", "line STRING, offset BIGINT, number INT"))
    write(tmp_path / "in", "one", [{"line": "a", "offset": -1, "number": 1}])
    with pytest.raises(PipelineError, match="no offset of at least 0"):
        Shop(spark, embedded, source).run()
