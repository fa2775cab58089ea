"""The relay to a lake, in this process on the shared Spark session: contents of the files, and failures."""

import logging
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.dataset as arrow
import pytest
from relay_threads import running

from penstock.model.errors import PipelineError, StoreUnavailable, UsageError
from penstock.model.event import Event
from penstock.model.lifecycle import State
from penstock.model.records import Record
from penstock.model.retry import RetryPolicy
from penstock.model.selection import Selection
from penstock.outbox import Outbox, connect
from penstock.pipeline.datasource import settle
from penstock.pipeline.datasource.settle import ClaimedEvent
from penstock.pipeline.lake import writer
from penstock.pipeline.lake.layout import Lake, folder_name, read
from penstock.pipeline.relay.driver import run_relay
from penstock.pipeline.relay.spec import RelayOptions
from penstock.runtime.store_cache import close_stores
from penstock.store.registry import open_store
from tests.support.processes import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WAIT_SECONDS = 180.0
Options = Callable[..., RelayOptions]
ODD_TYPES = [
    *("order.placed", "a/b/../c", "with space", "größe/日本", "1", "01", "1.0", "true", "null", "2026-01-31"),
    *("a=b%2Fc", "q?x#y", '"quoted"', "*", "..", "__HIVE_DEFAULT_PARTITION__", "_hidden", ".hidden", "line\nfeed"),
    *("x" * 255, "/" * 255, "ü" * 255, "x" * 199, " leading and trailing "),
]


# Without Spark


@pytest.mark.parametrize(
    ("url", "lake"),
    [
        ("lake:/var/lake", Lake("/var/lake")),
        ("lake:/var/lake/", Lake("/var/lake")),
        ("lake:file:///var/lake", Lake("file:///var/lake")),
        ("lake:s3a://bucket/prefix?every_seconds=60&batch_events=5", Lake("s3a://bucket/prefix", 5, 60.0)),
        ("lake:hdfs://name:8020/lake?every_seconds=0.5", Lake("hdfs://name:8020/lake", every_seconds=0.5)),
    ],
)
def test_lake_url_accepts_paths_and_hadoop_urls(url: str, lake: Lake) -> None:
    assert Lake.parse(url) == lake


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("lake:", "invalid lake URL lake:; expected an absolute path or a URL that Spark can write to, such as lake:"),
        ("lake:some/folder", "invalid lake URL lake:some/folder; expected"),
        ("lake:/", "invalid lake URL lake:/; expected"),
        ("file:/var/lake", "invalid lake URL file:/var/lake; expected"),
        ("lake:/x?evry_seconds=5", "unknown option 'evry_seconds' for lake:; supported: batch_events, every_seconds"),
        ("lake:/x?every_seconds=0", "every_seconds must be a number greater than 0, got '0'"),
        ("lake:/x?batch_events=many", "batch_events must be a whole number of at least 1, got 'many'"),
    ],
)
def test_invalid_lake_urls_are_usage_errors(url: str, message: str) -> None:
    with pytest.raises(UsageError, match=f"^{re.escape(message)}"):
        Lake.parse(url)


def test_relay_options_check_lake_url() -> None:
    assert RelayOptions(store="sqlite:///x.db", destination="lake:/var/lake").destination == "lake:/var/lake"
    with pytest.raises(UsageError, match="invalid lake URL lake:var; expected"):
        RelayOptions(store="sqlite:///x.db", destination="lake:var")


@pytest.mark.parametrize("event_type", ODD_TYPES)
def test_event_type_becomes_portable_folder_name(event_type: str) -> None:
    name = folder_name(event_type)
    assert name.isascii()
    assert name != "__HIVE_DEFAULT_PARTITION__"
    escaped = re.sub(r"[^A-Za-z0-9._-]", "%XX", name)
    assert len(f"event_type={escaped}") <= 255
    assert len({folder_name(other) for other in ODD_TYPES}) == len(ODD_TYPES)


# With Spark


@pytest.fixture(scope="module")
def session(spark: "SparkSession") -> Iterator["SparkSession"]:
    yield spark
    close_stores()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/penstock.db"
    found: str = request.getfixturevalue("postgres_url")
    return found


@pytest.fixture
def outbox(url: str) -> Iterator[Outbox]:
    with connect(url) as opened:
        opened.store.initialise()
        yield opened


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def options(url: str, lake: Path, session: "SparkSession") -> Options:
    """A factory of relay options that drain the queue into the lake, unless a test overrides them."""
    usual = {"store": url, "destination": f"lake:{lake}?every_seconds=0.2&batch_events=500", "once": True}
    return lambda **given: RelayOptions(**(usual | {"lease_seconds": 20.0} | given))


def records(outbox: Outbox, *states: State) -> list[Record]:
    chosen = Selection(states=frozenset(states) if states else None)
    return list(outbox.store.find(chosen, limit=10_000).records)


def plain(lake: Path) -> Counter[str]:
    """Return the number of rows of each event in the files, as any Parquet reader sees them."""
    if not any(lake.glob("day=*")):
        return Counter()
    return Counter(arrow.dataset(str(lake), partitioning="hive").to_table(columns=["event_id"])["event_id"].to_pylist())


def left_over(lake: Path) -> list[Path]:
    return [path for path in (lake / "_penstock").rglob("*") if path.is_file()]


@pytest.mark.spark
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_events_refused_by_store_do_not_end_relay(outbox: Outbox, options: Options, lake: Path) -> None:
    outbox.emit_many([outbox.event("x", str(number)) for number in range(40)])
    with outbox.store.transaction() as connection:
        connection.exec_driver_sql(
            "CREATE TRIGGER refusing BEFORE INSERT ON penstock_archive WHEN NEW.seq = 1 "
            "BEGIN SELECT RAISE(ABORT, 'not this one'); END"
        )
    report = run_relay(options(destination=f"lake:{lake}?every_seconds=0.2&batch_events=10"))
    assert (report.claimed, report.published) == (40, 30)
    assert {record.seq for record in records(outbox, State.CLAIMED)} == set(range(1, 11))


@pytest.mark.spark
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("error", [StoreUnavailable("gone for a while"), LookupError("broken")])
def test_only_store_outage_may_exceed_retry_limit(
    outbox: Outbox,
    options: Options,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    outbox.emit_many([Event(event_type="t") for _ in range(30)])
    failures = iter([error] * writer.PATIENCE.failures)

    def claim_rows(events: "DataFrame") -> list[ClaimedEvent]:
        rows = settle.claim_rows(events)
        if failure := next(failures, None):
            raise failure
        return rows

    monkeypatch.setattr(writer, "claim_rows", claim_rows)
    monkeypatch.setattr(writer, "PATIENCE", replace(writer.PATIENCE, first_seconds=0.05))
    if isinstance(error, StoreUnavailable):
        assert run_relay(options()).published == 30
        assert caplog.text.count("batch_failed retry_in=") == 5
    else:
        with pytest.raises(PipelineError, match=r"^slice failed: LookupError: broken$"):
            run_relay(options())


@pytest.mark.spark
def test_lake_rows_equal_emitted_events(outbox: Outbox, options: Options, lake: Path, session: "SparkSession") -> None:
    events = [
        Event(
            event_type="order.placed",
            payload=bytes([number % 256]) * number,
            headers={"origin": "shöp", "n": str(number)} if number % 2 else {},
            partition_key="eu" if number % 3 else None,
            ordering_key=f"customer-{number % 7}" if number % 5 else None,
            priority=number % 11 - 5,
            max_attempts=3 if number % 2 else None,
        )
        for number in range(1_200)
    ]
    outbox.emit_many(events)
    report = run_relay(options())
    assert (report.claimed, report.published, report.retried, report.lost) == (1_200, 1_200, 0, 0)
    assert len(records(outbox, State.PUBLISHED)) == 1_200
    assert outbox.store.stats().open_leases == 0
    emitted = {str(record.event_id): record for record in records(outbox)}
    rows = read(session, str(lake)).collect()
    assert len(rows) == 1_200
    names = ["seq", "event_type", "queue", "headers", "partition_key", "ordering_key", "priority", "max_attempts"]
    for row in rows:
        record = emitted[row.event_id]
        assert [row[name] for name in (*names, "replays")] == [getattr(record, name) for name in (*names, "replays")]
        assert bytes(row.payload) == record.payload
        assert (row.created_at.astimezone(UTC), row.day) == (record.created_at, record.created_at.date())
    assert plain(lake) == Counter(emitted.keys())
    day = {record.created_at.date().isoformat() for record in emitted.values()}
    assert {path.name for path in lake.iterdir() if path.name != "_penstock"} == {f"day={one}" for one in day}
    assert {path.name for path in lake.glob("day=*/*")} == {"event_type=order.placed"}
    assert left_over(lake) == []
    assert run_relay(options()).claimed == 0


@pytest.mark.spark
def test_any_event_type_can_be_written_and_read(
    outbox: Outbox, options: Options, lake: Path, session: "SparkSession"
) -> None:
    outbox.emit_many([Event(event_type=name, payload=name.encode()) for name in ODD_TYPES])
    assert run_relay(options()).published == len(ODD_TYPES)
    rows = read(session, f"lake:{lake}").collect()
    assert sorted(row.event_type for row in rows) == sorted(ODD_TYPES)
    assert all(bytes(row.payload).decode() == row.event_type for row in rows)
    assert plain(lake).total() == len(ODD_TYPES)
    for name in ODD_TYPES:
        assert [row.event_type for row in read(session, str(lake), event_type=name).collect()] == [name]


@pytest.mark.spark
def test_day_partition_is_emission_date_in_utc(
    outbox: Outbox, options: Options, lake: Path, session: "SparkSession"
) -> None:
    midnight = datetime(2026, 1, 31, tzinfo=UTC)
    moments = [midnight - timedelta(microseconds=1), midnight, midnight + timedelta(hours=23, minutes=59)]
    for moment in moments:
        then = open_store(options().store, clock=lambda: moment)  # noqa: B023
        then.append([Event(event_type="t", payload=moment.isoformat().encode())])
        then.close()
    run_relay(options())
    assert sorted(path.name for path in lake.glob("day=*")) == ["day=2026-01-30", "day=2026-01-31"]
    found = read(session, str(lake), since=midnight, until=moments[2]).collect()
    assert [bytes(row.payload).decode() for row in found] == [midnight.isoformat()]
    for file in lake.glob("day=2026-01-30/*/*.parquet"):
        file.write_bytes(b"spoilt: whoever opens it fails")
    assert read(session, str(lake), since=midnight, event_type="t").count() == 2


@pytest.mark.spark
def test_replayed_event_is_read_once_in_latest_delivery(
    outbox: Outbox, options: Options, lake: Path, session: "SparkSession"
) -> None:
    outbox.emit_many([Event(event_type="t") for _ in range(20)])
    run_relay(options())
    assert outbox.store.replay(Selection(everything=True)) == 20
    run_relay(options())
    rows = read(session, str(lake)).collect()
    assert Counter(row.replays for row in rows) == {1: 20}
    assert set(plain(lake).values()) == {2}
    for file in list(lake.rglob("*.parquet")):
        shutil.copy(file, file.with_name(f"again-{file.name}"))
    assert set(plain(lake).values()) == {4}
    assert Counter(row.event_id for row in read(session, str(lake)).collect()) == Counter(plain(lake).keys())


@pytest.mark.spark
def test_unwritable_path_leaves_retries_with_cause(
    outbox: Outbox, options: Options, lake: Path, session: "SparkSession", caplog: pytest.LogCaptureFixture
) -> None:
    outbox.emit_many([Event(event_type="t") for _ in range(30)])
    (lake / "_penstock").mkdir(parents=True)
    (lake / "_penstock" / "staging").write_text("in the way")
    with caplog.at_level(logging.WARNING, "penstock"):
        report = run_relay(options(retry=RetryPolicy.constant(0.5)))
    tries = report.retried // 30  # a retry may fall due before the relay has drained
    assert (report.published, report.retried, report.dead) == (0, 30 * tries, 0)
    waiting = records(outbox, State.PENDING)
    assert {record.attempts for record in waiting} == {tries}
    (error,) = {record.last_error for record in waiting}
    assert error is not None
    assert error.startswith("cannot write to the lake: ")
    assert str(lake) in error
    assert "publishing failed: cannot write to the lake" in caplog.text

    (lake / "_penstock" / "staging").unlink()
    assert wait_until(lambda: outbox.store.stats().total("ready") == 30, WAIT_SECONDS)
    assert run_relay(options()).published == 30
    assert plain(lake) == Counter(str(record.event_id) for record in waiting)


@pytest.mark.spark
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a file system that nobody can write to")
def test_failed_write_tasks_count_as_one_attempt(outbox: Outbox, options: Options, session: "SparkSession") -> None:
    outbox.emit_many([Event(event_type="t") for _ in range(30)])
    report = run_relay(options(destination="lake:/proc/lake", retry=RetryPolicy.constant(60.0)))
    assert (report.claimed, report.retried) == (30, 30)
    assert {(record.attempts, record.suspect) for record in records(outbox)} == {(1, 0)}
    (error,) = {record.last_error for record in records(outbox)}
    assert error is not None
    assert "/proc/lake" in error


@pytest.mark.spark
def test_failed_move_to_folder_leaves_retries(
    outbox: Outbox, options: Options, lake: Path, session: "SparkSession"
) -> None:
    outbox.emit_many([Event(event_type=name) for name in ("a", "b", "c") for _ in range(5)])
    day = records(outbox)[0].created_at.date()
    (lake / f"day={day}").mkdir(parents=True)
    (lake / f"day={day}" / "event_type=b").write_text("in the way")
    report = run_relay(options(retry=RetryPolicy.constant(0.5)))
    # A slow machine may find the retries due, and try them once more, before the relay ends.
    assert (report.published, report.retried % 15) == (0, 0)
    assert report.retried
    assert [path.name for path in lake.rglob("*.parquet")] == []
    assert left_over(lake) == []
    (lake / f"day={day}" / "event_type=b").unlink()
    assert wait_until(lambda: outbox.store.stats().total("ready") == 15, WAIT_SECONDS)
    assert run_relay(options()).published == 15
    assert set(plain(lake).values()) == {1}


@pytest.mark.spark
def test_running_relay_collects_events_and_ends_on_stop(
    outbox: Outbox, options: Options, lake: Path, session: "SparkSession"
) -> None:
    ids = outbox.emit_many([Event(event_type="t") for _ in range(10)])
    destination = f"lake:{lake}?every_seconds=3600"
    with running(options(once=False, destination=destination)) as reports:
        assert wait_until(lambda: outbox.store.stats().total("published") == 10, WAIT_SECONDS)
        assert [relay.destination for relay in outbox.store.stats().relays] == [destination]
        outbox.emit_many([Event(event_type="t") for _ in range(10)])
    assert (reports[0].published, outbox.store.stats().total("pending")) == (10, 10)
    assert outbox.store.stats().total("claimed") == 0
    assert plain(lake) == Counter(map(str, ids))
    assert not session.streams.active


@pytest.mark.spark
def test_nonexistent_lake_is_usage_error(session: "SparkSession", tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"^lake {tmp_path}/none does not exist; relay events to it first$"):
        read(session, f"lake:{tmp_path}/none")
