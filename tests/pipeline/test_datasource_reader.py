"""`format("penstock")` as a source: streams that claim under leases, batches that only read, and settlement."""

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from penstock.model.errors import UsageError
from penstock.model.event import EventId
from penstock.model.lease import Settlement
from penstock.model.lifecycle import State
from penstock.model.outcome import PUBLISHED, RELEASED, Dead, Outcome, Retry
from penstock.model.records import Record
from penstock.model.selection import Selection
from penstock.outbox import Outbox, connect
from penstock.pipeline.datasource import reader as source
from penstock.pipeline.datasource.reader import EventReader, SeqBlocks, SourceOptions, lease_of
from penstock.pipeline.datasource.settle import by_lease, settle, worst
from penstock.pipeline.formats import register
from penstock.pipeline.spark.errors import root_cause
from penstock.runtime.store_cache import close_stores

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming import StreamingQuery

Handle = Callable[["DataFrame", int], Any]


# Without Spark


@pytest.mark.parametrize(
    ("one", "other", "wins"),
    [
        (PUBLISHED, RELEASED, RELEASED),
        (RELEASED, Retry("later"), Retry("later")),
        (Retry("later"), Dead("never"), Dead("never")),
        (Retry("first"), Retry("second"), Retry("first")),
        (PUBLISHED, PUBLISHED, PUBLISHED),
    ],
)
def test_worst_outcome_of_event_wins(one: Outcome, other: Outcome, wins: Outcome) -> None:
    assert worst(one, other) == wins
    assert type(worst(other, one)) is type(wins)


def test_outcomes_are_grouped_by_lease_and_token() -> None:
    lease, old, new = str(uuid4()), str(uuid4()), str(uuid4())
    rows = [
        {"seq": 1, "lease": lease, "token": old, "outcome": "published"},
        {"seq": 1, "lease": lease, "token": new, "outcome": "dead", "error": "bad"},
        {"seq": 2, "lease": lease, "token": new, "outcome": None},
        {"seq": 2, "lease": lease, "token": new, "outcome": "RETRY", "delay_seconds": 5.0},
    ]
    grouped = {str(lease.token): outcomes for lease, outcomes in by_lease(rows).items()}
    assert grouped == {old: {1: PUBLISHED}, new: {1: Dead("bad"), 2: Retry("failed in a pipeline step", 5.0)}}


def test_unknown_outcome_is_refused() -> None:
    row = {"seq": 1, "lease": str(uuid4()), "token": str(uuid4()), "outcome": "LOST"}
    with pytest.raises(UsageError, match=r"^unknown outcome 'LOST'; expected one of PUBLISHED, RETRY, DEAD, RELEASED$"):
        by_lease([row])


def test_options_accept_camel_case_and_upper_case() -> None:
    given = {"store": "s", "leaseSeconds": "5", "LIMIT": "7", "event_type": "order.placed"}
    options = SourceOptions.parse(given)
    assert (options.lease_seconds, options.limit, options.event_type) == (5.0, 7, "order.placed")


def test_lease_of_partition_is_deterministic() -> None:
    query = str(uuid4())
    assert lease_of(query, 3, 1) == lease_of(query, 3, 1)
    assert len({lease_of(query, batch, index) for batch in range(5) for index in range(5)}) == 25


@pytest.fixture
def outbox(tmp_path: Path) -> Iterator[Outbox]:
    with connect(f"sqlite:///{tmp_path}/penstock.db") as box:
        box.store.initialise()
        yield box
    close_stores()


def emit_to(outbox: Outbox, count: int) -> None:
    outbox.emit_many([outbox.event("order.placed", {"number": number}) for number in range(count)])


@pytest.mark.parametrize("planned", [0, 1, 20])
def test_partitions_of_outdated_plan_split_all_events(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch, planned: int
) -> None:
    monkeypatch.setattr(source, "READ_PAGE", 4)
    emit_to(outbox, planned)
    reader = EventReader(SourceOptions(outbox.store.engine.url.render_as_string(), partitions=3))
    partitions = reader.partitions()
    emit_to(outbox, 60)
    read = [[seq for batch in reader.read(one) for seq in batch.column("seq").to_pylist()] for one in partitions]
    assert sorted(seq for seqs in read for seq in seqs) == list(range(1, planned + 61))
    assert all(len(seqs) >= 16 for seqs in read)  # no partition gets all the new events


def test_partitions_skip_range_of_purged_events(outbox: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "READ_PAGE", 4)
    store = outbox.store
    emit_to(outbox, 20)
    reader = EventReader(SourceOptions(store.engine.url.render_as_string(), partitions=2))
    partitions = reader.partitions()
    claim = store.claim("outbox", limit=100, claimant="test")
    store.settle(claim.lease, {event.seq: PUBLISHED for event in claim.events})
    emit_to(outbox, 20)
    store.purge(Selection(everything=True))
    read = [[seq for batch in reader.read(one) for seq in batch.column("seq").to_pylist()] for one in partitions]
    assert sorted(seq for seqs in read for seq in seqs) == list(range(21, 41))
    assert all(len(seqs) == 10 for seqs in read)


def test_new_plan_has_one_range_per_partition(outbox: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "READ_PAGE", 4)
    emit_to(outbox, 30)
    partitions = EventReader(SourceOptions(outbox.store.engine.url.render_as_string(), partitions=3)).partitions()
    assert [[seq for seq in range(1, 31) if seq in one] for one in partitions] == [
        list(range(1, 11)),
        list(range(11, 21)),
        list(range(21, 31)),
    ]


@pytest.mark.parametrize("after", range(-20, 40))
def test_reading_continues_at_next_lower_block(after: int) -> None:
    blocks = SeqBlocks(1, 3, 4, 5)
    assert blocks.top(after) == next(seq for seq in range(after - 1, -100, -1) if seq in blocks) + 1


# With Spark


@pytest.fixture(scope="module")
def session(spark: "SparkSession") -> Iterator["SparkSession"]:
    register(spark)
    yield spark
    close_stores()


class Stream:
    """An outbox, and streaming queries on it that run one after the other with the same checkpoint."""

    def __init__(self, spark: "SparkSession", url: str, outbox: Outbox, folder: Path) -> None:
        self.url = url
        self.outbox = outbox
        self._spark = spark
        self._checkpoint = str(folder / "checkpoint")

    def emit(self, count: int, **fields: Any) -> list[EventId]:
        events = [self.outbox.event("order.placed", {"number": number}, **fields) for number in range(count)]
        return self.outbox.emit_many(events)

    def run(self, handle: Handle, **options: object) -> "StreamingQuery":
        """Run batches until nothing is left to claim."""
        source = self._spark.readStream.format("penstock").options(store=self.url, **options)
        query = source.load().writeStream.foreachBatch(handle).option("checkpointLocation", self._checkpoint).start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()
        return query

    def die(self, **options: object) -> list["Row"]:
        """Claim a batch and fail before it is settled; return the claimed rows."""
        claimed: list[Row] = []

        def claim_and_fail(batch: "DataFrame", _number: int) -> None:
            claimed.extend(batch.collect())
            raise LookupError("died here")

        with pytest.raises(Exception, match="died here"):
            self.run(claim_and_fail, **options)
        return claimed

    def records(self) -> list[Record]:
        return list(self.outbox.store.find(Selection(), limit=10_000).records)

    def states(self) -> Counter[State]:
        return Counter(record.state for record in self.records())


@pytest.fixture
def stream(session: "SparkSession", postgres_url: str, tmp_path: Path) -> Iterator[Stream]:
    with connect(postgres_url) as outbox:
        outbox.store.initialise()
        yield Stream(session, postgres_url, outbox, tmp_path)


@pytest.mark.spark
def test_each_partition_of_each_batch_has_separate_lease(stream: Stream) -> None:
    ids = stream.emit(10)
    batches: list[list[Row]] = []

    def handle(batch: "DataFrame", _number: int) -> None:
        batch.persist()
        batches.append(batch.collect())
        settle(batch, stream.url)
        batch.unpersist()

    query = stream.run(handle, partitions=2, limit=3)
    assert sorted(row.event_id for rows in batches for row in rows) == sorted(map(str, ids))
    for number, rows in enumerate(batches, start=1):
        assert max(Counter(row.lease for row in rows).values()) <= 3
        assert {row.lease for row in rows} <= {str(lease_of(str(query.id), number, index)) for index in range(2)}
    assert stream.states() == {State.PUBLISHED: 10}
    assert stream.outbox.store.stats().open_leases == 0


@pytest.mark.spark
def test_row_has_all_event_fields(stream: Stream) -> None:
    stream.emit(1, queue="mail", headers={"origin": "shop"}, partition_key="eu", ordering_key="c1", priority=7)
    rows: list[Row] = []
    stream.run(lambda batch, _: rows.extend(batch.collect()), queue="mail", partitions=1)
    (row,), (record,) = rows, stream.records()
    names = ["seq", "event_type", "queue", "headers", "partition_key", "ordering_key", "priority", "attempts"]
    assert [row[name] for name in names] == [getattr(record, name) for name in names]
    assert (row.event_id, bytes(row.payload)) == (str(record.event_id), record.payload)
    assert (row.created_at.astimezone(), row.state) == (record.created_at, "CLAIMED")


@pytest.mark.spark
def test_unsettled_batch_is_claimed_again_with_same_leases(stream: Stream) -> None:
    stream.emit(20)
    died = stream.die()
    assert stream.states() == {State.CLAIMED: 20}
    later = stream.emit(5)
    batches: list[list[Row]] = []

    def handle(batch: "DataFrame", _number: int) -> None:
        batch.persist()
        batches.append(batch.collect())
        settle(batch, stream.url)

    stream.run(handle)
    again, rest = batches[0], [row for rows in batches[1:] for row in rows]
    assert sorted(row.event_id for row in again) == sorted(row.event_id for row in died)
    assert {row.lease for row in again} == {row.lease for row in died}
    assert {row.token for row in again}.isdisjoint(row.token for row in died)
    # Another run is another claimant: the attempt of the first run counts as lost.
    assert {(row.attempts, row.deliveries) for row in died} == {(0, 1)}
    assert {(row.attempts, row.deliveries) for row in again} == {(1, 2)}
    assert sorted(row.event_id for row in rest) == sorted(map(str, later))
    assert stream.states() == {State.PUBLISHED: 25}
    assert stream.outbox.store.stats().open_leases == 0


@pytest.mark.spark
def test_settled_batch_is_not_claimed_again_after_failure(stream: Stream) -> None:
    ids = stream.emit(10)

    def settle_and_fail(batch: "DataFrame", _number: int) -> None:
        settle(batch, stream.url)
        raise LookupError("died here")

    with pytest.raises(Exception, match="died here"):
        stream.run(settle_and_fail)
    rows: list[Row] = []
    stream.run(lambda batch, _: rows.extend(batch.collect()))
    assert rows == []
    assert stream.states() == {State.PUBLISHED: len(ids)}


@pytest.mark.spark
@pytest.mark.parametrize(("before", "after"), [(4, 1), (1, 4)])
def test_partition_count_change_leaves_no_open_lease(stream: Stream, before: int, after: int) -> None:
    stream.emit(4)
    died = stream.die(partitions=before, limit=1)
    assert len(died) == before
    batches: list[int] = []
    stream.run(lambda batch, _: batches.append(len(settle(batch, stream.url).published)), partitions=after, limit=1)
    assert batches[:2] == [before, 4 - before][: len(batches)]
    assert stream.states() == {State.PUBLISHED: 4}
    assert stream.outbox.store.stats().open_leases == 0


@pytest.mark.spark
def test_settle_applies_worst_outcome_of_copies(stream: Stream) -> None:
    from pyspark.sql import functions as on

    ids = stream.emit(5)
    wanted = [["PUBLISHED"], ["PUBLISHED", "DEAD"], ["RETRY", "PUBLISHED"], ["RELEASED"], ["RELEASED", "RETRY"]]
    settled: list[Settlement] = []

    def handle(batch: "DataFrame", _number: int) -> None:
        number = on.get_json_object(on.col("payload").cast("string"), "$.number").cast("int")
        choices = on.array(*(on.array(*map(on.lit, outcomes)) for outcomes in wanted))
        copies = batch.withColumn("outcome", on.explode(choices[number])).withColumn("delay_seconds", on.lit(3_600.0))
        settled.append(settle(copies.withColumn("error", on.lit("as told")).repartition(3), stream.url))
        # End after one batch: the released events would be claimed again and again.
        raise LookupError("enough")

    with pytest.raises(Exception, match="enough"):
        stream.run(handle, partitions=1)
    counts = {name: len(getattr(settled[0], name)) for name in ("published", "dead", "retried", "released", "lost")}
    assert counts == {"published": 1, "dead": 1, "retried": 2, "released": 1, "lost": 0}
    found = {record.event_id: record for record in stream.records()}
    states = [found[event_id].state for event_id in ids]
    assert states == [State.PUBLISHED, State.DEAD, State.PENDING, State.PENDING, State.PENDING]
    assert [found[event_id].attempts for event_id in ids] == [0, 1, 1, 0, 1]
    assert [found[event_id].last_error for event_id in ids] == [None, "as told", "as told", None, "as told"]


@pytest.mark.spark
def test_settle_without_required_columns_is_refused(stream: Stream) -> None:
    messages: list[str] = []

    def handle(batch: "DataFrame", _number: int) -> None:
        with pytest.raises(UsageError) as refused:
            settle(batch.drop("token", "lease"), stream.url)
        messages.append(str(refused.value))
        batch.collect()  # claim the events, or the batches would never end

    stream.emit(1)
    stream.run(handle)
    assert messages == ["missing columns: lease, token; a step must keep seq, lease, token"]


@pytest.mark.spark
def test_batch_read_returns_all_states_and_changes_none(stream: Stream, session: "SparkSession") -> None:
    store = stream.outbox.store
    stream.emit(40)
    claim = store.claim("outbox", limit=30, claimant="someone")
    seqs = [event.seq for event in claim.events]
    store.settle(claim.lease, dict.fromkeys(seqs[:10], PUBLISHED) | dict.fromkeys(seqs[10:15], Dead("bad")))
    stream.emit(3, queue="mail")
    before, stats = stream.records(), store.stats().queues

    def read(**options: object) -> list["Row"]:
        return session.read.format("penstock").options(store=stream.url, **options).load().collect()

    rows = read(partitions=3)
    assert Counter(row.state for row in rows) == {"PENDING": 13, "CLAIMED": 15, "PUBLISHED": 10, "DEAD": 5}
    assert sorted((row.seq, row.event_id, row.state, row.attempts) for row in rows) == sorted(
        (record.seq, str(record.event_id), record.state.value, record.attempts) for record in before
    )
    assert {row.claimed_by for row in rows if row.state == "CLAIMED"} == {"someone"}
    assert Counter(row.state for row in read(state="dead, published")) == {"PUBLISHED": 10, "DEAD": 5}
    assert len(read(queue="mail")) == 3
    assert len(read(since=(before[0].created_at + timedelta(hours=1)).isoformat())) == 0
    assert stream.records() == before
    assert [(q.queue, q.pending, q.claimed, q.published, q.dead) for q in store.stats().queues] == [
        (q.queue, q.pending, q.claimed, q.published, q.dead) for q in stats
    ]


@pytest.mark.spark
def test_each_dataframe_action_sees_committed_events(stream: Stream, session: "SparkSession") -> None:
    frame = session.read.format("penstock").options(store=stream.url).load()
    pending = frame.where("state = 'PENDING'")
    for total in (0, 5, 10, 15):
        assert [len(frame.collect()), frame.count(), len(pending.collect()), pending.count()] == [total] * 4
        stream.emit(5)


@pytest.mark.spark
def test_each_query_of_view_sees_committed_events(stream: Stream, session: "SparkSession") -> None:
    session.sql(f"CREATE OR REPLACE TEMP VIEW events USING penstock OPTIONS (store '{stream.url}')")
    for total in (0, 5, 10, 15):
        assert [session.sql("SELECT count(*) FROM events").head()[0], session.table("events").count()] == [total] * 2
        stream.emit(5)
    session.catalog.dropTempView("events")


@pytest.mark.spark
def test_event_committed_late_with_low_seq_is_read(stream: Stream, session: "SparkSession") -> None:
    frame = session.read.format("penstock").options(store=stream.url).load()
    with stream.outbox.store.transaction() as connection:
        stream.outbox.emit("order.placed", connection=connection)
        stream.emit(1)
        assert [row.seq for row in frame.collect()] == [2]
    assert sorted(row.seq for row in frame.collect()) == [1, 2]


@pytest.mark.spark
def test_empty_store_returns_no_rows(stream: Stream, session: "SparkSession") -> None:
    assert session.read.format("penstock").option("store", stream.url).load().count() == 0


@pytest.mark.spark
@pytest.mark.parametrize("reading", ["read", "readStream"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quue": "mail"}, "unknown option 'quue' for format penstock; supported: store, queue, limit, "),
        ({"limit": "many"}, "limit must be a number, got 'many'"),
        ({"partitions": "0"}, "partitions must be greater than 0, got 0"),
        ({"state": "alive"}, "unknown state 'alive'; expected one of PENDING, CLAIMED, PUBLISHED, DEAD"),
        ({"since": "yesterday"}, "invalid time 'yesterday'; expected ISO 8601 such as 2026-01-31T12:00:00+00:00"),
    ],
)
def test_invalid_options_are_usage_errors_at_load(
    session: "SparkSession", reading: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(Exception, match="UsageError") as raised:
        getattr(session, reading).format("penstock").options(**options).load()
    assert root_cause(str(raised.value)).startswith(f"penstock.model.errors.UsageError: {message}")
