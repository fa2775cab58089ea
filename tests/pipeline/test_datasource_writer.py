"""`format("penstock")` as a sink: atomic writes, each batch of a stream once, and errors for invalid rows."""

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import func, select

from penstock.model.errors import InvalidEvent, NotSupported, UsageError
from penstock.model.records import Record
from penstock.model.selection import Selection
from penstock.outbox import Outbox, connect
from penstock.pipeline.datasource.reader import PenstockDataSource, SourceOptions
from penstock.pipeline.datasource.writer import COLUMNS, StagedRows, StreamWriter, Target, _events, check
from penstock.pipeline.formats import register
from penstock.pipeline.spark.errors import root_cause
from penstock.runtime.store_cache import close_stores
from penstock.store.sql.schema import staged

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql import DataFrame, SparkSession

TARGET = Target("sqlite:///nowhere.db")


# Without Spark's sessions


def struct(**kinds: Any) -> Any:
    """Return a schema with event_type, payload and the given columns; None as a type removes a column."""
    from pyspark.sql.types import StructType

    wanted = {"event_type": "string", "payload": "string", **kinds}
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in wanted.items() if kind]
    return StructType.fromJson({"type": "struct", "fields": fields})


def mapping(value: str) -> dict[str, Any]:
    return {"type": "map", "keyType": "string", "valueType": value, "valueContainsNull": True}


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        ({"Customer": "string", "x": "integer"}, "unknown columns: Customer, x; supported: "),
        ({"payload": None}, "missing columns: payload"),
        ({"event_type": None}, 'missing columns: event_type (or the option "event_type")'),
        ({"payload": "integer"}, "column payload must be binary or string, got int"),
        ({"headers": mapping("integer")}, "column headers must be map<string,string>, got map<string,int>"),
        ({"available_at": "timestamp_ntz"}, "column available_at must be timestamp, got timestamp_ntz"),
        ({"priority": "double"}, "column priority must be tinyint or smallint or int or bigint, got double"),
        ({"Payload": "string"}, "columns must be unique, got event_type, payload, payload"),
    ],
)
def test_invalid_columns_are_refused(kinds: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        check(struct(**kinds), TARGET, overwrite=False)
    assert str(refused.value).startswith(message)


def test_unknown_column_error_lists_supported_columns() -> None:
    with pytest.raises(UsageError, match=f"supported: {', '.join(COLUMNS)}$"):
        check(struct(body="string"), TARGET, overwrite=False)


def test_valid_columns_are_accepted() -> None:
    kinds = {"event_type": None, "Event_Type": "string", "delay_seconds": "decimal(4,1)", "priority": "byte"}
    check(struct(**kinds, headers=mapping("string")), TARGET, overwrite=False)
    check(struct(event_type=None), Target("s", event_type="order.placed"), overwrite=False)


def test_overwrite_mode_is_refused() -> None:
    with pytest.raises(UsageError, match="events cannot be overwritten"):
        check(struct(), TARGET, overwrite=True)


def test_reading_options_are_refused_for_writing() -> None:
    given = {"store": "s", "limit": "7", "state": "dead", "checkpointLocation": "c", "queue": "q"}
    with pytest.raises(UsageError, match="reading only: limit, state; supported for writing: store, queue, event_type"):
        SourceOptions.parse(given).target()


def test_empty_batch_does_not_open_store() -> None:
    writer = StreamWriter(TARGET)
    writer.commit([], 3)
    writer.commit([None], 3)
    writer.abort([None], 3)


def test_stream_to_store_without_staging_is_refused() -> None:
    options = {"store": "mysql://someone:secret@127.0.0.1:1/shop", "checkpointLocation": "c"}
    with pytest.raises(NotSupported, match=r"does not support staging, which df\.writeStream and streams") as refused:
        PenstockDataSource(options).streamWriter(struct(), overwrite=False)
    assert "secret" not in str(refused.value)


def rows(**columns: list[Any]) -> "RecordBatch":
    import pyarrow as pa

    return pa.RecordBatch.from_pydict(columns)


def test_null_means_default_value() -> None:
    batch = rows(
        payload=["text", b"bytes".decode()], event_type=[None, "b"], queue=[None, "q"], dedupe_seconds=[None, 5]
    )
    one, other = _events(batch, Target("s", "mail", "a"), 0, 0)
    assert (one.event_type, one.queue, one.payload, one.dedupe_seconds) == ("a", "mail", b"text", 86_400.0)
    assert (other.event_type, other.queue, other.dedupe_seconds) == ("b", "q", 5.0)
    assert one.headers == {"content-type": "text/plain; charset=utf-8"}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"payload": ["x", None]}, "payload must not be NULL; use an empty payload instead (row 8 of partition 3)"),
        ({"payload": ["x"], "event_id": ["42"]}, "invalid event id '42'; expected a UUID (row 7 of partition 3)"),
        (
            {"payload": ["x"], "priority": [200]},
            "priority must be between -100 and 100, got 200 (row 7 of partition 3)",
        ),
        ({"payload": ["x"], "event_type": [None]}, "event_type must be a string, got NoneType (row 7 of partition 3)"),
    ],
)
def test_invalid_row_is_named_in_error(columns: dict[str, list[Any]], message: str) -> None:
    given = {"event_type": ["a"] * len(columns["payload"]), **columns}
    with pytest.raises(InvalidEvent) as refused:
        _events(rows(**given), TARGET, 3, 7)
    assert str(refused.value) == message


# With Spark


@pytest.fixture(scope="module")
def session(spark: "SparkSession") -> Iterator["SparkSession"]:
    register(spark)
    yield spark
    close_stores()


class Ground:
    """An outbox to write to, and a folder with the files and checkpoint of a stream."""

    def __init__(self, spark: "SparkSession", url: str, outbox: Outbox, folder: Path) -> None:
        self.spark = spark
        self.url = url
        self.store = outbox.store
        self._folder = folder
        self._files = folder / "in"
        self._files.mkdir()

    def write(self, frame: "DataFrame", **options: str) -> None:
        frame.write.format("penstock").option("store", self.url).options(**options).mode("append").save()

    def numbers(self, count: int, partitions: int = 3) -> "DataFrame":
        frame = self.spark.range(0, count, 1, partitions)
        return frame.selectExpr("'order.placed' AS event_type", "CAST(id AS STRING) AS payload")

    def arrive(self, name: str, first: int, last: int) -> None:
        """Write a file of numbers for the stream to read."""
        (self._files / name).write_text("".join(f"{number}\n" for number in range(first, last)))

    def stream(self, change: Callable[["DataFrame"], "DataFrame"] = lambda frame: frame, **options: str) -> str:
        """Emit the numbers of the files that were not yet emitted; return the query's id."""
        lines = self.spark.readStream.option("maxFilesPerTrigger", 1).text(str(self._files))
        frame = change(lines.selectExpr("'order.placed' AS event_type", "value AS payload"))
        sink = frame.writeStream.format("penstock").options(store=self.url, **options)
        query = sink.option("checkpointLocation", str(self._folder / "checkpoint")).start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()
        return str(query.id)

    def records(self) -> list[Record]:
        return list(self.store.find(Selection(), limit=100_000).records)

    def payloads(self) -> list[int]:
        return sorted(int(record.payload) for record in self.records())

    def staged(self) -> int:
        with self.store.transaction() as connection:
            return int(connection.execute(select(func.count()).select_from(staged)).scalar_one())


@pytest.fixture(params=["postgresql", "sqlite"])
def ground(request: pytest.FixtureRequest, session: "SparkSession", tmp_path: Path) -> Iterator[Ground]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/shop.db"
    else:
        url = request.getfixturevalue({"postgresql": "postgres_url", "mysql": "mariadb_url"}[request.param])
    with connect(url) as outbox:
        outbox.store.initialise()
        yield Ground(session, url, outbox, tmp_path)


only_on_postgres = pytest.mark.parametrize("ground", ["postgresql"], indirect=True)


@pytest.mark.spark
def test_columns_become_event_fields(ground: Ground) -> None:
    event_id, moment = uuid4(), datetime(2030, 1, 2, 3, 4, 5, 678901, UTC)
    columns = (
        "'order.placed' AS event_type, X'00FF' AS payload, 'mail' AS queue, map('origin', 'shop') AS headers, "
        "'eu' AS partition_key, 'c1' AS ordering_key, 7 AS priority, "
        f"TIMESTAMP '{moment.isoformat()}' AS available_at, "
        "CAST(NULL AS DOUBLE) AS delay_seconds, 3 AS max_attempts, 'd' AS dedupe_key, 0.5 AS dedupe_seconds, "
        f"'{event_id}' AS event_id"
    )
    ground.write(ground.spark.sql(f"SELECT {columns}"))
    (record,) = ground.records()
    assert (record.event_type, record.payload, record.queue) == ("order.placed", b"\x00\xff", "mail")
    assert (record.headers, record.partition_key, record.ordering_key) == ({"origin": "shop"}, "eu", "c1")
    assert (record.priority, record.max_attempts, record.event_id) == (7, 3, event_id)
    assert record.available_at == moment
    assert ground.staged() == 0


@pytest.mark.spark
def test_options_replace_missing_columns(ground: Ground) -> None:
    ground.write(ground.numbers(4).select("payload"), queue="mail", event_type="order.sent")
    assert Counter((one.queue, one.event_type) for one in ground.records()) == {("mail", "order.sent"): 4}


only_on_mysql = pytest.mark.parametrize("ground", ["mysql"], indirect=True)


@pytest.mark.spark
@only_on_mysql
def test_stream_without_staging_emits_nothing(ground: Ground) -> None:
    ground.arrive("a", 0, 3)
    with pytest.raises(Exception, match=r"NotSupported.* does not support staging"):
        ground.stream()
    assert ground.records() == []


@pytest.mark.spark
@only_on_mysql
def test_batch_without_staging_is_appended(ground: Ground, small_batches: None) -> None:
    """Each task has several Arrow batches, and the second attempt of a task emits the events of the first again."""
    ground.write(ground.numbers(1_000))
    assert ground.payloads() == list(range(1_000))
    ids = [str(uuid4()) for _ in range(3)]
    schema = "event_id STRING, payload STRING, event_type STRING"
    named = ground.spark.createDataFrame([(one, "1000", "order.placed") for one in ids], schema)
    ground.write(named)
    assert {str(one.event_id) for one in ground.records()} > set(ids)
    numbers = ground.numbers(300)
    ground.write(numbers.mapInArrow(failing(1), numbers.schema), queue="again")
    assert {int(one.payload) for one in ground.records() if one.queue == "again"} == set(range(300))


@pytest.mark.spark
@only_on_postgres
def test_seq_follows_row_order(ground: Ground) -> None:
    ground.write(ground.numbers(5_000))
    assert [int(one.payload) for one in reversed(ground.records())] == list(range(5_000))


@pytest.mark.spark
def test_rows_read_from_store_can_be_written(ground: Ground) -> None:
    """Copy events from one queue to another, as a DataFrame job would."""
    ground.write(ground.numbers(10))
    events = ground.spark.read.format("penstock").option("store", ground.url).load().where("queue = 'outbox'")
    ground.write(events.select("event_type", "payload", "headers"), queue="copies")
    assert Counter(one.queue for one in ground.records()) == {"outbox": 10, "copies": 10}


def failing(attempts: int) -> Callable[[Any], Any]:
    """Return a function for `mapInArrow` that fails the first `attempts` attempts of the last task, after its rows."""

    def work(batches: Any) -> Any:
        from pyspark import TaskContext

        yield from batches
        context = TaskContext.get()
        if context.partitionId() == 2 and context.attemptNumber() < attempts:
            raise LookupError("the task died here")

    return work


@pytest.fixture
def small_batches(session: "SparkSession") -> Iterator[None]:
    """Make Arrow batches small, so that a task has staged rows before it fails."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = session.conf.get(name)
    session.conf.set(name, "50")
    yield
    session.conf.set(name, before)


@pytest.mark.spark
@only_on_postgres
def test_task_retry_does_not_duplicate_events(ground: Ground, small_batches: None) -> None:
    numbers = ground.numbers(1_000)
    ground.write(numbers.mapInArrow(failing(2), numbers.schema))
    assert ground.payloads() == list(range(1_000))
    assert ground.staged() == 0


@pytest.mark.spark
def test_failed_write_emits_nothing_and_leaves_no_staged_rows(ground: Ground, small_batches: None) -> None:
    # Only the failing task has rows: another task that Spark has not ended yet could stage rows after the abort, and
    # such rows remain until they are old enough to be purged.
    numbers = ground.numbers(1_000).where("CAST(payload AS INT) >= 700")
    with pytest.raises(Exception, match="the task died here"):
        ground.write(numbers.mapInArrow(failing(99), numbers.schema))
    assert ground.records() == []
    assert ground.staged() == 0


@pytest.mark.spark
@only_on_postgres
def test_refused_commit_emits_nothing_and_leaves_no_staged_rows(ground: Ground) -> None:
    twice = ground.numbers(10).selectExpr("*", f"'{uuid4()}' AS event_id")
    with pytest.raises(Exception, match="an event with this event_id already exists"):
        ground.write(twice)
    assert ground.records() == []
    assert ground.staged() == 0


@pytest.mark.spark
@only_on_postgres
@pytest.mark.parametrize(
    ("mode", "change", "options", "message"),
    [
        ("append", "id AS number", {}, "unknown columns: number; supported: event_type, payload, queue, "),
        ("append", "'x' AS queue", {"partitions": "3"}, "options for reading only: partitions; supported for "),
        ("overwrite", "'x' AS queue", {}, 'events cannot be overwritten; use mode("append")'),
    ],
)
def test_invalid_write_is_refused_before_spark_job(
    ground: Ground, mode: str, change: str, options: dict[str, str], message: str
) -> None:
    frame = ground.spark.range(3).selectExpr("'a' AS event_type", "'b' AS payload", change)
    tracker = ground.spark.sparkContext.statusTracker()
    before = len(tracker.getJobIdsForGroup(None))
    with pytest.raises(Exception, match="UsageError") as raised:
        frame.write.format("penstock").options(store=ground.url, **options).mode(mode).save()
    assert root_cause(str(raised.value)).startswith(f"penstock.model.errors.UsageError: {message}")
    assert len(tracker.getJobIdsForGroup(None)) == before


@pytest.mark.spark
def test_restarted_stream_continues_from_checkpoint(ground: Ground) -> None:
    ground.arrive("a", 0, 50)
    ground.arrive("b", 50, 80)
    first = ground.stream()
    assert ground.payloads() == list(range(80))
    ground.arrive("c", 80, 100)
    assert ground.stream() == first
    assert ground.payloads() == list(range(100))
    assert ground.staged() == 0


@pytest.mark.spark
@only_on_postgres
def test_stream_applies_options_and_accepts_empty_batches(ground: Ground) -> None:
    ground.arrive("a", 0, 10)
    ground.arrive("b", 10, 20)
    ground.stream(lambda frame: frame.where("payload >= 15").drop("event_type"), queue="mail", event_type="order.sent")
    assert ground.payloads() == list(range(15, 20))
    assert {(one.queue, one.event_type) for one in ground.records()} == {("mail", "order.sent")}


@pytest.mark.spark
@only_on_postgres
def test_failed_batch_is_written_once_after_restart(ground: Ground, small_batches: None) -> None:
    ground.arrive("a", 0, 300)

    def fail(frame: "DataFrame") -> "DataFrame":
        return frame.repartition(3).mapInArrow(failing(99), frame.schema)

    with pytest.raises(Exception, match="the task died here"):
        ground.stream(fail)
    assert ground.records() == []
    ground.stream(lambda frame: frame.repartition(5))
    assert ground.payloads() == list(range(300))
    assert ground.staged() == 0


@pytest.mark.spark
@only_on_postgres
def test_stream_with_unknown_column_is_refused(ground: Ground) -> None:
    ground.arrive("a", 0, 3)
    with pytest.raises(Exception, match="unknown columns: body; supported: event_type, payload"):
        ground.stream(lambda frame: frame.withColumnRenamed("payload", "body"))


def test_staged_rows_message_has_write_and_part_ids() -> None:
    message = StagedRows(UUID(int=1), UUID(int=2), 3)
    assert (message.write_id.int, message.part_id.int, message.count) == (1, 2, 3)
