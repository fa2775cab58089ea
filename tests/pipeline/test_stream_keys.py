"""Which part an event belongs to: told by Spark as Python would tell it."""

from typing import TYPE_CHECKING

import pytest

from penstock.pipeline.stream_errands import Errand
from penstock.pipeline.stream_keys import keyed
from penstock.pipeline.stream_rows import ROWS
from penstock.pipeline.stream_sources import in_columns
from penstock.pipeline.stream_tasks import assign
from penstock.streams.app import Stream, StreamSet
from penstock.streams.event import KEY_HEADER, STREAM_HEADER, StreamEvent
from penstock.streams.state.base import Started

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


def _stream() -> Stream:
    app = StreamSet("sqlite:///unused.db")

    @app.stream("orders", parts=7)
    def total(event: StreamEvent, ctx: object) -> None:
        """Nothing."""

    return app.streams["total"]


def _told(frame: "DataFrame") -> dict[str, tuple[int, str, str | None]]:
    rows = frame.select("event_id", "part", "stream_key", "headers").collect()
    return {row.event_id: (row.part, row.stream_key or "", row.headers) for row in rows}


def test_an_events_own_key_is_told_by_spark_as_python_would(spark: "SparkSession") -> None:
    errand = Errand(_stream(), Started("total", 1, 7), "sqlite:///unused.db", "sqlite:///unused")
    events = in_columns(spark.createDataFrame([(*fields, bytearray(b"{}")) for fields in EVENTS], SCHEMA))
    by_spark = keyed(events, errand)
    with_text = events.selectExpr("* EXCEPT (headers)", "CASE WHEN size(headers) > 0 THEN to_json(headers) END headers")
    by_python = with_text.select(*events.columns).mapInArrow(assign(errand), ROWS)
    assert _told(by_spark) == _told(by_python)
    assert {key for _, key, _ in _told(by_spark).values()} == {"ada", "Žofie 🚰", "grace", "alan", ""}
