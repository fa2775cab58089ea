"""Spark and Python compute the same state partition for an event."""

from operator import itemgetter
from typing import TYPE_CHECKING, Any

import pytest

from penstock.pipeline.streams.partitioning import keyed
from penstock.pipeline.streams.rows import KEYING, widened
from penstock.pipeline.streams.sources.base import BLANK, COLUMNS
from penstock.pipeline.streams.task_spec import StreamTaskSpec
from penstock.streams.app import Stream, StreamSet, default_key, part_of
from penstock.streams.event import KEY_HEADER, STREAM_HEADER, StreamEvent
from penstock.streams.state.api import Started

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SCHEMA = "event_id STRING, partition_key STRING, ordering_key STRING, headers MAP<STRING, STRING>, payload BINARY"
EVENTS = [
    ("plain", "ada", None, None),
    ("not-ascii", "Žofie 🚰", None, {}),
    ("ordered", None, "grace", None),
    ("both", "ada", "grace", None),
    ("moved", "ada", None, {KEY_HEADER: "alan", STREAM_HEADER: "total", "other": "1"}),
    ("moved by another", "ada", None, {KEY_HEADER: "alonzo", STREAM_HEADER: "others"}),
    ("moved-without", "ada", None, {KEY_HEADER: "", STREAM_HEADER: "total"}),
    ("empty", "", "grace", None),
    ("none", None, None, None),
    ("nul", "a\x00b", None, None),
]


def _stream(**options: Any) -> Stream:
    app = StreamSet("sqlite:///unused.db")

    @app.stream("orders", parts=7, **options)
    def total(event: StreamEvent, ctx: object) -> None:
        """Nothing."""

    return app.streams["total"]


def _spec(**options: Any) -> StreamTaskSpec:
    return StreamTaskSpec(_stream(**options), Started("total", 1, 7), "sqlite:///unused.db", "sqlite:///unused")


def _own_key(event: StreamEvent) -> str:
    """Return the default key from Python. A stream with a key function is not keyed by Spark itself."""
    return default_key(event)


def _assigned(frame: "DataFrame") -> dict[str, tuple[int, str, str | None]]:
    rows = frame.select("event_id", "part", "stream_key", "headers").collect()
    return {row.event_id: (row.part, row.stream_key or "", row.headers) for row in rows}


def test_spark_and_python_compute_same_default_key(spark: "SparkSession") -> None:
    events = spark.createDataFrame([(*fields, bytearray(b"{}")) for fields in EVENTS], SCHEMA)
    by_spark = _assigned(keyed(events, _spec()))
    assert by_spark == _assigned(keyed(events, _spec(key=_own_key)))
    assert {key for _, key, _ in by_spark.values()} == {"ada", "Žofie 🚰", "grace", "alan", ""}


@pytest.mark.parametrize("options", [{}, {"key": _own_key}], ids=["Spark", "Python"])
def test_missing_source_columns_are_blank(spark: "SparkSession", options: dict[str, Any]) -> None:
    import pyarrow as pa

    source = spark.sql(
        "SELECT 'a' AS source_partition, 7L AS offset, 'ada' AS partition_key, CAST('1' AS BINARY) AS payload"
    )
    rows = keyed(source, _spec(**options))
    assert set(rows.columns) - {"stream_key", "key_error"} == {"part", *source.columns}
    blank = {**dict.fromkeys((*COLUMNS, *KEYING)), **BLANK}
    known = {
        "source_partition": "a",
        "offset": 7,
        "partition_key": "ada",
        "payload": b"1",
        "part": part_of("ada", 7),
    }
    assert widened(rows.toArrow()).to_pylist() == [{**blank, **known, "stream_key": "ada", "event_id": "a/7"}]
    assert widened(pa.table({"part": [1]}).slice(0, 0)).num_rows == 0


def test_partition_key_used_as_key_is_not_duplicated(spark: "SparkSession") -> None:
    keys = ["ada", "", "a\x00b", None]
    source = spark.createDataFrame(
        [(str(place), key) for place, key in enumerate(keys)], "event_id STRING, partition_key STRING"
    )
    rows = keyed(source, _spec())
    assert "stream_key" not in rows.columns
    events = sorted(widened(rows.toArrow()).to_pylist(), key=itemgetter("event_id"))
    assert [one["stream_key"] for one in events] == ["ada", None, None, None]
    assert [one["part"] for one in events] == [part_of("ada", 7), 0, 0, 0]
