"""Findings computed from statistics: which problems are reported, and which states are not."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from penstock.admin.findings import findings
from penstock.model.stats import QueueControl, QueueStats, RelayStats, Stats


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


def relay(queue: str = "outbox", seen_seconds_ago: float = 2.0, to: str = "null:") -> RelayStats:
    return RelayStats(uuid4(), queue, to, "here:1", datetime.now(UTC), seen_seconds_ago, stopping=False)


def worker(queue: str = "outbox", seen_seconds_ago: float = 2.0) -> RelayStats:
    return relay(queue, seen_seconds_ago, "worker here:1:a0b1c2")


def waiting(queue: str = "outbox", ready: int = 1_204, oldest: float = 200.0) -> QueueStats:
    return QueueStats(queue, pending=ready, ready=ready, oldest_pending_seconds=oldest)


def messages(found: Stats, *controls: QueueControl) -> list[str]:
    return [str(finding) for finding in findings(found, controls)]


def codes(found: Stats, *controls: QueueControl) -> Sequence[str]:
    return [finding.code for finding in findings(found, controls)]


def test_healthy_store_has_no_findings() -> None:
    assert messages(stats(QueueStats("outbox", published=5_000))) == []


def test_pending_events_without_relay_are_finding() -> None:
    assert messages(stats(waiting())) == [
        "1,204 events are pending in queue outbox and no relay or worker is running: penstock relay --to URL"
    ]


def test_pending_events_with_silent_relay_are_finding() -> None:
    (line,) = messages(stats(waiting(), relays=[relay(seen_seconds_ago=185.0)]))
    assert "no relay has been seen for 3 min" in line


def test_relay_of_another_queue_does_not_count() -> None:
    (line,) = messages(stats(waiting("mail", ready=1), relays=[relay("outbox")]))
    assert (
        line
        == "1 event is pending in queue mail and no relay or worker is running: penstock relay --to URL --queue mail"
    )


def test_unclaimed_jobs_are_finding() -> None:
    assert messages(stats(waiting("jobs/email:send", 3), waiting("other/a b", 1))) == [
        "3 jobs of type email:send can be claimed, but no worker has claimed one: penstock jobs list --type email:send",
        "1 job of type a b can be claimed, but no worker has claimed one: penstock jobs list --type 'a b' --name other",
    ]
    busy = QueueStats("jobs/email:send", pending=3, ready=3, claimed=1, oldest_pending_seconds=200.0)
    assert messages(stats(busy)) == []


def test_recent_burst_is_no_finding() -> None:
    assert messages(stats(waiting(oldest=1.0))) == []


def test_delayed_events_are_no_finding() -> None:
    assert messages(stats(QueueStats("outbox", pending=9, ready=0, oldest_pending_seconds=0.0))) == []


def test_slow_relay_is_finding() -> None:
    assert codes(stats(waiting(oldest=30.0), relays=[relay()])) == []
    (line,) = messages(stats(waiting(oldest=720.0), relays=[relay()]))
    assert line.startswith("the oldest event in queue outbox has waited 12 min although a relay is running")


def test_expired_leases_without_reaper_are_finding() -> None:
    assert messages(stats(expired_leases=12)) == ["12 expired leases and no running relay or worker: penstock reap"]
    assert messages(stats(expired_leases=12, relays=[relay()])) == []


def test_dead_events_finding_names_most_frequent_error() -> None:
    dead = stats(QueueStats("outbox", dead=37), dead_errors=[("timeout\nwhile connecting", 30), ("refused", 7)])
    assert messages(dead) == ["37 events are dead; most frequent error: timeout: penstock dead list"]
    alike = stats(QueueStats("outbox", dead=1), dead_errors=[("refused", 1)])
    assert messages(alike) == ["1 event is dead; error: refused: penstock dead list"]


def test_old_snapshot_is_finding() -> None:
    assert codes(stats(oldest_snapshot_seconds=30.0)) == []
    (line,) = messages(stats(oldest_snapshot_seconds=7_500.0))
    assert line.startswith("a transaction has been open for 2 h and blocks vacuum")


def test_findings_are_ordered_by_urgency() -> None:
    everything = stats(
        waiting(), QueueStats("mail", dead=1), expired_leases=1, oldest_snapshot_seconds=9_999.0, dead_errors=[("x", 1)]
    )
    assert codes(everything) == ["no_relay", "expired", "dead", "old_snapshot"]


# Workers


def test_pending_events_with_silent_workers_are_finding() -> None:
    (line,) = messages(stats(waiting(), relays=[worker(seen_seconds_ago=185.0)]))
    assert line.endswith("no worker has been seen for 3 min: penstock worker MODULE:WORKER")
    (line,) = messages(stats(waiting(), relays=[worker(seen_seconds_ago=185.0), relay(seen_seconds_ago=60.0)]))
    assert line.endswith("no relay or worker has been seen for 1 min: penstock relay --to URL")


def test_slow_workers_are_finding() -> None:
    (line,) = messages(stats(waiting(oldest=720.0), relays=[worker()]))
    assert "although a worker is running; check for errors, or add workers" in line


def test_expired_leases_with_worker_are_no_finding() -> None:
    assert messages(stats(expired_leases=12, relays=[worker()])) == []


# Paused and limited queues

PAUSED = QueueControl("mail", datetime(2026, 1, 31, 12, 0, 5, tzinfo=UTC), "ada")


def test_paused_queue_with_ready_events_is_finding() -> None:
    """The pause is the only reason reported, with or without a relay and for any waiting time."""
    for relays in ([], [relay("mail")]):
        assert messages(stats(waiting("mail", ready=2, oldest=0.1), relays=relays), PAUSED) == [
            "queue mail has been paused since 2026-01-31 12:00:05Z by ada, with 2 ready events: penstock resume mail"
        ]


def test_paused_queue_without_ready_events_is_no_finding() -> None:
    later = QueueStats("mail", pending=9, ready=0, oldest_pending_seconds=0.0)
    assert messages(stats(later), PAUSED) == []
    assert messages(stats(), PAUSED) == []


def test_pause_of_another_queue_does_not_count() -> None:
    assert codes(stats(waiting("orders"), relays=[relay("orders", 1.0)]), PAUSED) == ["slow"]


def test_reached_limit_with_waiting_events_is_info() -> None:
    full = QueueStats("mail", pending=9, ready=9, claimed=5, oldest_pending_seconds=180.0)
    (finding,) = findings(stats(full, relays=[worker("mail")]), [QueueControl("mail", max_claimed=5)])
    assert (finding.code, finding.level) == ("limited", "info")
    assert str(finding) == (
        "queue mail has reached its limit of 5 claimed at a time, and its oldest event has waited 3 min; "
        "raise the limit: penstock limit mail 10"
    )


def test_limit_is_no_finding_if_another_cause_applies() -> None:
    full = QueueStats("mail", pending=9, ready=9, claimed=5, oldest_pending_seconds=180.0)
    assert codes(stats(full, relays=[worker("mail")]), QueueControl("mail", max_claimed=6)) == ["slow"]
    assert codes(stats(full), QueueControl("mail", max_claimed=5)) == ["no_relay"]
    soon = QueueStats("mail", pending=9, ready=9, claimed=5, oldest_pending_seconds=20.0)
    assert codes(stats(soon, relays=[worker("mail")]), QueueControl("mail", max_claimed=5)) == []


def test_queue_name_is_quoted_in_suggested_command() -> None:
    (line,) = messages(stats(waiting("my queue; rm")), QueueControl("my queue; rm", datetime.now(UTC)))
    assert line.endswith("penstock resume 'my queue; rm'")
