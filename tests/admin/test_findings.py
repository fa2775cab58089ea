"""What is said about a store, and what is not: from numbers alone."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from penstock.admin.findings import findings
from penstock.store.base import QueueStats, RelayStats, Stats


def stats(*queues: QueueStats, **overrides: Any) -> Stats:
    values: dict[str, Any] = {
        "queues": queues,
        "open_leases": 0,
        "expired_leases": 0,
        "oldest_snapshot_seconds": None,
        "relays": (),
        "dead_errors": (),
    }
    return Stats(**{**values, **overrides})


def relay(queue: str = "outbox", seen_seconds_ago: float = 2.0) -> RelayStats:
    return RelayStats(uuid4(), queue, "null:", "here:1", datetime.now(UTC), seen_seconds_ago, stopping=False)


def waiting(queue: str = "outbox", ready: int = 1_204, oldest: float = 200.0) -> QueueStats:
    return QueueStats(queue, pending=ready, ready=ready, oldest_pending_seconds=oldest)


def said(found: Stats) -> list[str]:
    return [str(finding) for finding in findings(found)]


def codes(found: Stats) -> Sequence[str]:
    return [finding.code for finding in findings(found)]


def test_a_quiet_store_gives_nothing_to_say() -> None:
    assert said(stats(QueueStats("outbox", published=5_000))) == []


def test_events_wait_and_no_relay_was_ever_there() -> None:
    assert said(stats(waiting())) == [
        "1,204 events are pending in queue outbox and no relay is running: penstock relay --to URL"
    ]


def test_events_wait_and_the_relay_has_gone_silent() -> None:
    (line,) = said(stats(waiting(), relays=[relay(seen_seconds_ago=185.0)]))
    assert "no relay has been seen for 3 min" in line


def test_a_relay_of_another_queue_doesnt_help() -> None:
    (line,) = said(stats(waiting("mail", ready=1), relays=[relay("outbox")]))
    assert line == "1 event is pending in queue mail and no relay is running: penstock relay --to URL --queue mail"


def test_a_burst_that_was_just_emitted_is_no_finding() -> None:
    assert said(stats(waiting(oldest=1.0))) == []


def test_events_for_later_are_no_finding() -> None:
    assert said(stats(QueueStats("outbox", pending=9, ready=0, oldest_pending_seconds=0.0))) == []


def test_a_relay_that_falls_behind() -> None:
    assert codes(stats(waiting(oldest=30.0), relays=[relay()])) == []
    (line,) = said(stats(waiting(oldest=720.0), relays=[relay()]))
    assert line.startswith("the oldest event in queue outbox has waited 12 min although a relay runs")


def test_expired_leases_are_told_when_nobody_reaps() -> None:
    assert said(stats(expired_leases=12)) == ["12 leases expired and nobody reaps: penstock reap"]
    assert said(stats(expired_leases=12, relays=[relay()])) == []


def test_the_dead_are_told_with_their_commonest_error() -> None:
    dead = stats(QueueStats("outbox", dead=37), dead_errors=[("timeout\nwhile connecting", 30), ("refused", 7)])
    assert said(dead) == ["37 events are dead, mostly of: timeout: penstock events --state dead"]
    alike = stats(QueueStats("outbox", dead=1), dead_errors=[("refused", 1)])
    assert said(alike) == ["1 event is dead of: refused: penstock events --state dead"]


def test_an_old_snapshot_is_told() -> None:
    assert codes(stats(oldest_snapshot_seconds=30.0)) == []
    (line,) = said(stats(oldest_snapshot_seconds=7_500.0))
    assert line.startswith("a transaction has been open for 2 h and holds up vacuum")


def test_the_most_pressing_comes_first() -> None:
    everything = stats(
        waiting(), QueueStats("mail", dead=1), expired_leases=1, oldest_snapshot_seconds=9_999.0, dead_errors=[("x", 1)]
    )
    assert codes(everything) == ["no_relay", "expired", "dead", "old_snapshot"]
