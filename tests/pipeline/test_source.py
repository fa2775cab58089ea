"""`format("penstock")`: a stream claims events under leases that outlive the query, a batch only looks."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import UsageError
from penstock.lifecycle import Dead, Published, Released, Retry, State
from penstock.outbox import Outbox, connect
from penstock.pipeline.settling import by_lease, settle, worst
from penstock.pipeline.source import SourceOptions, lease_of, register
from penstock.store.base import Record, Selection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Handle = Callable[["DataFrame", int], object]


class Crash(Exception):
    """What a test's query dies of."""


@pytest.fixture
def outbox(postgres_url: str) -> Iterator[Outbox]:
    with connect(postgres_url) as opened:
        opened.store.initialise()
        yield opened


@pytest.fixture
def session(spark: "SparkSession") -> "SparkSession":
    register(spark)
    return spark


def emit(outbox: Outbox, count: int) -> None:
    outbox.emit_many([outbox.event("order.placed", {"n": n}, headers={"h": str(n)}) for n in range(count)])


def records(outbox: Outbox, *states: State) -> list[Record]:
    chosen = frozenset(states) or frozenset(State)
    return list(outbox.store.find(Selection(states=chosen), limit=10_000).records)


def run(session: "SparkSession", url: str, checkpoint: Path, handle: Handle, **options: int) -> None:
    """Run a query over all that is pending, until it has caught up or died."""
    reader = session.readStream.format("penstock").option("store", url).options(**options)
    query = reader.load().writeStream.foreachBatch(handle).option("checkpointLocation", str(checkpoint)).start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()


def crash_after_claiming(seen: list[Any]) -> Handle:
    def handle(batch: "DataFrame", _number: int) -> None:
        seen.extend(batch.select("seq", "lease", "token").collect())
        raise Crash

    return handle


@pytest.mark.spark
def test_a_stream_claims_each_partition_under_a_lease_of_its_own(
    session: "SparkSession", outbox: Outbox, postgres_url: str, tmp_path: Path
) -> None:
    emit(outbox, 250)
    batches: list[list[Any]] = []

    def handle(batch: "DataFrame", _number: int) -> None:
        batch.persist()
        batches.append(batch.select("seq", "lease", "payload", "headers", "event_type", "state").collect())
        settle(batch, postgres_url)

    run(session, postgres_url, tmp_path / "checkpoint", handle, limit=100, partitions=2)
    rows = [row for batch in batches for row in batch]
    assert sorted(row.seq for row in rows) == sorted({row.seq for row in rows})
    assert [len({row.lease for row in batch}) for batch in batches] == [2, 1]
    assert {bytes(row.payload) for row in rows} == {f'{{"n":{n}}}'.encode() for n in range(250)}
    assert all(row.headers["content-type"] == "application/json" and row.state == "CLAIMED" for row in rows)
    assert len(records(outbox, State.PUBLISHED)) == 250
    assert outbox.store.stats().open_leases == 0


@pytest.mark.spark
def test_a_restarted_query_repeats_its_claims_whatever_its_partitions_are_now(
    session: "SparkSession", outbox: Outbox, postgres_url: str, tmp_path: Path
) -> None:
    emit(outbox, 100)
    first: list[Any] = []
    with pytest.raises(Exception, match="Crash"):
        run(session, postgres_url, tmp_path / "checkpoint", crash_after_claiming(first), limit=20, partitions=3)
    held = {row.seq for row in first}
    assert len(held) == 60

    again: list[Any] = []

    def handle(batch: "DataFrame", number: int) -> None:
        batch.persist()
        again.extend((number, row) for row in batch.select("seq", "lease", "token", "attempts").collect())
        settle(batch, postgres_url)

    run(session, postgres_url, tmp_path / "checkpoint", handle, limit=20, partitions=2)
    repeated = [row for number, row in again if number == 0]
    assert {row.seq for row in repeated} <= held
    assert {row.lease for row in repeated} <= {row.lease for row in first}
    assert not {row.token for row in repeated} & {row.token for row in first}
    assert {row.attempts for row in repeated} == {1}, "another run of the query counts a lost attempt"
    settled = records(outbox, State.PUBLISHED)
    assert {record.seq for record in settled} >= held
    assert len(settled) == 100
    assert records(outbox, State.PENDING, State.CLAIMED) == []


@pytest.mark.spark
def test_outcomes_come_from_columns_and_the_worst_of_an_event_wins(
    session: "SparkSession", outbox: Outbox, postgres_url: str, tmp_path: Path
) -> None:
    emit(outbox, 30)

    def handle(batch: "DataFrame", _number: int) -> None:
        from pyspark.sql import functions

        number = functions.get_json_object(functions.col("payload").cast("string"), "$.n").cast("int")
        copies = batch.crossJoin(session.range(2)).repartition(3)
        kind = functions.expr("CASE WHEN n = 7 AND id = 1 THEN 'DEAD' WHEN n = 8 THEN 'RETRY' ELSE 'PUBLISHED' END")
        given = copies.withColumn("n", number).withColumn("outcome", kind)
        given = given.withColumn("error", functions.lit("bad")).withColumn("delay_seconds", functions.lit(60.0))
        settle(given, postgres_url)

    run(session, postgres_url, tmp_path / "checkpoint", handle, limit=100, partitions=1)
    by_number = {int(record.payload.decode()[5:-1]): record for record in records(outbox)}
    assert {n for n, record in by_number.items() if record.state is not State.PUBLISHED} == {7, 8}
    assert (by_number[7].state, by_number[7].last_error) == (State.DEAD, "bad")
    assert (by_number[8].state, by_number[8].attempts) == (State.PENDING, 1)


@pytest.mark.spark
def test_a_batch_reads_every_state_and_changes_nothing(
    session: "SparkSession", outbox: Outbox, postgres_url: str
) -> None:
    emit(outbox, 40)
    claim = outbox.store.claim("outbox", limit=30, claimant="test")
    seqs = [event.seq for event in claim.events]
    outcomes = {**dict.fromkeys(seqs[:10], Published()), **dict.fromkeys(seqs[10:15], Dead("bad"))}
    outbox.store.settle(claim.lease, outcomes)
    before = records(outbox)
    frame = session.read.format("penstock").option("store", postgres_url).option("partitions", 3).load()
    counts = {row.state: row["count"] for row in frame.groupBy("state").count().collect()}
    assert counts == {"PENDING": 10, "CLAIMED": 15, "PUBLISHED": 10, "DEAD": 5}
    dead = session.read.format("penstock").options(store=postgres_url, state="dead", queue="outbox").load()
    (row,) = dead.where(dead.seq == seqs[10]).collect()
    record = next(record for record in before if record.seq == seqs[10])
    assert (row.last_error, row.event_type, row.headers) == ("bad", "order.placed", record.headers)
    assert row.event_id == str(record.event_id)
    assert records(outbox) == before


@pytest.mark.spark
def test_an_empty_store_reads_as_no_rows(session: "SparkSession", outbox: Outbox, postgres_url: str) -> None:
    assert session.read.format("penstock").option("store", postgres_url).load().count() == 0


@pytest.mark.spark
def test_a_mistake_is_told_in_one_line(session: "SparkSession", postgres_url: str) -> None:
    frame = session.read.format("penstock").option("store", postgres_url).option("colour", "red")
    with pytest.raises(Exception, match="has no option 'colour'"):
        frame.load().count()
    with pytest.raises(UsageError, match="a step dropped lease, token"):
        settle(session.range(3).withColumnRenamed("id", "seq"), postgres_url)


def test_options_are_checked() -> None:
    assert SourceOptions.parse({"store": "s", "leaseSeconds": "5", "LIMIT": "7"}).limit == 7
    for wrong in ({"limit": "many"}, {"limit": "0"}, {"lease_seconds": "-1"}):
        with pytest.raises(UsageError):
            SourceOptions.parse({"store": "s", **wrong})
    with pytest.raises(UsageError, match="not a state"):
        SourceOptions.parse({"store": "s", "state": "asleep"}).selection()
    with pytest.raises(UsageError, match="not a time"):
        SourceOptions.parse({"store": "s", "since": "yesterday"}).selection()


def test_a_partition_s_lease_is_the_same_whenever_and_wherever_it_runs() -> None:
    query = "6b3f0f6e-8c1e-4a50-9d6c-0e2ab0f0c001"
    assert lease_of(query, 3, 1) == lease_of(query, 3, 1)
    assert len({lease_of(query, batch, index) for batch in range(5) for index in range(5)}) == 25


def test_the_worst_outcome_wins() -> None:
    ranked = [Published(), Released(), Retry("busy"), Dead("bad")]
    for low, one in enumerate(ranked):
        for high, other in enumerate(ranked):
            assert worst(one, other) is (other if high > low else one)


def test_rows_are_settled_under_the_lease_and_token_that_they_name() -> None:
    ids = ["6b3f0f6e-8c1e-4a50-9d6c-0e2ab0f0c001", "6b3f0f6e-8c1e-4a50-9d6c-0e2ab0f0c002"]
    rows = [
        {"seq": 1, "lease": ids[0], "token": ids[1]},
        {"seq": 1, "lease": ids[0], "token": ids[1], "outcome": "retry", "error": "busy"},
        {"seq": 2, "lease": ids[1], "token": ids[0], "outcome": None},
    ]
    grouped = {str(lease.lease_id): outcomes for lease, outcomes in by_lease(rows).items()}
    assert grouped == {ids[0]: {1: Retry("busy", None)}, ids[1]: {2: Published()}}
    with pytest.raises(UsageError, match="not an outcome"):
        by_lease([{"seq": 1, "lease": ids[0], "token": ids[1], "outcome": "shrug"}])
