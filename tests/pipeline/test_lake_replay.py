"""Replay from a lake: events are replayed if the store still has them, else emitted anew, and never twice."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from penstock.cli import main
from penstock.model.errors import EventNotFound, UsageError
from penstock.model.event import Event, EventId
from penstock.model.lifecycle import State
from penstock.model.records import Record
from penstock.model.selection import Selection
from penstock.outbox import Outbox, connect
from penstock.pipeline.lake import replay as lake_replay
from penstock.pipeline.lake.layout import read
from penstock.pipeline.lake.replay import BroughtBack, LakeReplay
from penstock.pipeline.relay.driver import run_relay
from penstock.pipeline.relay.spec import RelayOptions
from penstock.runtime.store_cache import close_stores

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
ALL = Selection(everything=True)


@dataclass(frozen=True)
class Archive:
    """An outbox with its events in a lake."""

    spark: "SparkSession"
    outbox: Outbox
    path: Path

    @property
    def lake(self) -> str:
        return f"lake:{self.path}"

    def relay(self) -> int:
        options = {"store": self.outbox.store.url, "destination": self.lake, "lease_seconds": 20.0}
        return run_relay(RelayOptions(once=True, **options)).published  # type: ignore[arg-type]

    def replay(self, selection: Selection = ALL) -> LakeReplay:
        return LakeReplay(self.spark, self.lake, selection, self.outbox.store)

    def records(self) -> dict[EventId, Record]:
        return {record.event_id: record for record in self.outbox.store.find(Selection(), limit=10_000).records}


@pytest.fixture(params=["sqlite", "postgresql"])
def archive(request: pytest.FixtureRequest, spark: "SparkSession", tmp_path: Path) -> Iterator[Archive]:
    url = f"sqlite:///{tmp_path}/penstock.db"
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres_url")
    with connect(url) as outbox:
        outbox.store.initialise()
        yield Archive(spark, outbox, tmp_path / "lake")
    close_stores()


def whole(record: Record) -> tuple[Any, ...]:
    """Return the fields of an event that a replay must not change."""
    names = ("event_id", "event_type", "queue", "payload", "headers", "partition_key", "ordering_key", "priority")
    return (*(getattr(record, name) for name in names), record.max_attempts)


def test_each_event_is_replayed_or_emitted_once(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake_replay, "BATCH", 7)
    store = archive.outbox.store
    ids = archive.outbox.emit_many(
        Event(
            event_type=f"t{number % 3}",
            payload=bytes(range(256)),
            headers={"n": str(number)} if number % 2 else {},
            partition_key="eu",
            ordering_key=f"k{number % 4}" if number % 5 else None,
            priority=number % 3,
            max_attempts=4,
        )
        for number in range(30)
    )
    before = archive.records()
    assert archive.relay() == 30
    purged, pending = ids[:10], ids[10:15]
    assert store.purge(Selection(ids=frozenset(purged))) == 10
    assert store.replay(Selection(ids=frozenset(pending))) == 5

    expected = BroughtBack(replayed=15, emitted=10, waiting=5)
    seen: list[int] = []
    assert archive.replay().judge() == expected
    assert len(archive.records()) == 20
    assert archive.replay().bring_back(by="me", progress=seen.append) == expected
    assert seen == [7, 14, 21, 28, 30]
    after = archive.records()
    assert {record.state for record in after.values()} == {State.PENDING}
    assert {event_id: whole(record) for event_id, record in after.items()} == {
        event_id: whole(record) for event_id, record in before.items()
    }
    assert {after[event_id].replays for event_id in ids[15:]} == {1}
    assert archive.replay().bring_back(by="me") == BroughtBack(waiting=30)

    assert archive.relay() == 30
    rows = read(archive.spark, archive.lake).collect()
    assert sorted(row.event_id for row in rows) == sorted(map(str, ids))
    assert {row.seq for row in rows} == {record.seq for record in after.values()}


def test_selection_filters_by_event_fields_and_time(archive: Archive) -> None:
    emit = archive.outbox.emit
    ids = [emit("a"), emit("b"), emit("a", queue="mail")]
    archive.relay()
    options = {"store": archive.outbox.store.url, "destination": archive.lake, "queue": "mail"}
    run_relay(RelayOptions(once=True, **options))  # type: ignore[arg-type]
    moment = archive.records()[ids[1]].created_at

    def chosen(**selection: Any) -> list[tuple[str, str, int]]:
        counts = archive.replay(Selection(**selection)).counts()
        assert all(count.day == moment.date() for count in counts)
        return [(count.event_type, count.queue, count.count) for count in counts]

    assert chosen(everything=True) == [("a", "mail", 1), ("a", "outbox", 1), ("b", "outbox", 1)]
    assert chosen(event_type="a") == [("a", "mail", 1), ("a", "outbox", 1)]
    assert chosen(queue="mail") == [("a", "mail", 1)]
    assert chosen(since=moment) == [("a", "mail", 1), ("b", "outbox", 1)]
    assert chosen(until=moment) == [("a", "outbox", 1)]
    assert chosen(ids=frozenset(ids[:2])) == [("a", "outbox", 1), ("b", "outbox", 1)]
    assert chosen(since=datetime.now(UTC) + timedelta(days=1)) == []
    with pytest.raises(EventNotFound):
        archive.replay(Selection(ids=frozenset({ids[0], EventId(uuid4())}))).counts()
    for wrong in (Selection(states=frozenset({State.DEAD})), Selection(error="x"), Selection()):
        with pytest.raises(UsageError):
            archive.replay(wrong)


def test_concurrent_replays_emit_each_event_once(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = archive.outbox.emit_many([Event(event_type="t") for _ in range(5)])
    archive.relay()
    store = archive.outbox.store
    store.purge(Selection(everything=True))
    append: Callable[..., Any] = store.append
    raced: list[BroughtBack] = []

    def other_first(events: list[Event]) -> list[EventId]:
        monkeypatch.setattr(store, "append", append)
        raced.append(archive.replay(Selection(ids=frozenset(ids[:3]))).bring_back(by="other"))
        found: list[EventId] = append(events)
        return found

    monkeypatch.setattr(store, "append", other_first)
    assert archive.replay().bring_back(by="me") == BroughtBack(emitted=2, waiting=3)
    assert raced == [BroughtBack(emitted=3)]
    assert archive.records().keys() == set(ids)


def test_replay_command_supports_dry_run_and_json(archive: Archive, capsys: pytest.CaptureFixture[str]) -> None:
    import json

    archive.outbox.emit_many([Event(event_type="order.placed") for _ in range(3)])
    archive.relay()
    archive.outbox.store.purge(Selection(event_type="order.placed"))
    (day,) = (path.name.partition("=")[2] for path in archive.path.glob("day=*"))

    def penstock(*arguments: str) -> tuple[int, str, str]:
        code = main(["replay", "--store", archive.outbox.store.url, "--from-lake", archive.lake, *arguments])
        return (code, *capsys.readouterr())

    capsys.readouterr()
    assert penstock("--all", "--dry-run") == (
        0,
        f"would replay 3 events from the lake\n          3  {day}  order.placed, queue outbox\n"
        "expected result: 3 events emitted again\n",
        "",
    )
    shown = json.loads(penstock("--type", "order.placed", "--dry-run", "--json")[1])
    group = {"day": day, "event_type": "order.placed", "queue": "outbox", "count": 3}
    assert shown == {"dry_run": True, "total": 3, "groups": [group], "replayed": 0, "emitted": 3, "waiting": 0}
    assert penstock("--all", "--yes") == (0, "3 events emitted again\n", "")
    assert penstock("--all") == (0, "3 events left unchanged: already pending\n", "")
    assert json.loads(penstock("--since", "1h", "--json")[1]) == {"replayed": 0, "emitted": 0, "waiting": 3}
    assert penstock("--type", "none") == (0, "0 events replayed\n", "")
    code, _, error = penstock("--state", "dead")
    assert (code, error.startswith("error: --state and --error are not available for a lake")) == (2, True)
    assert penstock()[0] == 2
