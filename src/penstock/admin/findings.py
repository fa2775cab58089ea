"""Problems of a store, in plain English, with the command that helps. Pure: computed from the store's statistics."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC
from shlex import quote
from typing import Literal

from penstock.admin.text import age, count, first_line
from penstock.model.event import DEFAULT_QUEUE
from penstock.model.stats import QueueControl, QueueStats, RelayStats, Stats

# Relays and workers announce themselves every few seconds; one that is silent for this long has ended or hangs.
RELAY_SILENT_SECONDS = 30.0
# Emits come in bursts: only events that have waited for this long indicate a problem.
UNRELAYED_SECONDS = 5.0
SLOW_SECONDS = 60.0
OLD_SNAPSHOT_SECONDS = 600.0
ERROR_WIDTH = 80


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem or remark: `code` for programs, `text` for people, and `command` if a command helps.

    Level `info` is a remark on a state that may be intended.
    """

    code: str
    text: str
    command: str | None = None
    level: Literal["warn", "info"] = "warn"

    def __str__(self) -> str:
        return f"{self.text}: {self.command}" if self.command else self.text


def findings(stats: Stats, controls: Sequence[QueueControl] = ()) -> list[Finding]:
    """Return all findings, most urgent first; an empty list means that the store is healthy."""
    steered = {control.queue: control for control in controls}
    found = [
        finding
        for queue in stats.queues
        for finding in _waiting(queue, steered.get(queue.queue, QueueControl(queue.queue)), stats)
    ]
    return [*found, *_expired(stats), *_dead(stats), *_snapshot(stats)]


def alive(relay: RelayStats) -> bool:
    return relay.seen_seconds_ago <= RELAY_SILENT_SECONDS


def _waiting(queue: QueueStats, control: QueueControl, stats: Stats) -> Iterator[Finding]:
    """Yield the most important reason why ready events are not claimed."""
    oldest = queue.oldest_pending_seconds or 0.0
    if queue.ready and control.paused:
        yield _paused(queue, control)
        return
    if not queue.ready or oldest < UNRELAYED_SECONDS:
        return
    relays = [relay for relay in stats.relays if relay.queue == queue.queue]
    running = [relay for relay in relays if alive(relay)]
    if not relays and "/" in queue.queue:
        yield from _unclaimed(queue)
    elif not running:
        yield _unattended(queue, relays)
    elif oldest >= SLOW_SECONDS and control.max_claimed is not None and queue.claimed >= control.max_claimed:
        yield _limited(queue, control.max_claimed, oldest)
    elif oldest >= SLOW_SECONDS:
        yield _slow(queue, running[0].kind, oldest)


def _paused(queue: QueueStats, control: QueueControl) -> Finding:
    since = "" if control.paused_at is None else f" since {control.paused_at.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"
    by = f" by {control.paused_by}" if control.paused_by else ""
    text = f"queue {queue.queue} has been paused{since}{by}, with {count(queue.ready, 'ready event')}"
    return Finding("paused", text, f"penstock resume {quote(queue.queue)}")


def _unattended(queue: QueueStats, relays: list[RelayStats]) -> Finding:
    option = "" if queue.queue == DEFAULT_QUEUE else f" --queue {quote(queue.queue)}"
    workers = bool(relays) and all(relay.kind == "worker" for relay in relays)
    return Finding(
        "no_relay",
        f"{_are(queue.ready)} pending in queue {queue.queue} and {_last_seen(relays)}",
        "penstock worker MODULE:WORKER" if workers else f"penstock relay --to URL{option}",
    )


def _unclaimed(queue: QueueStats) -> Iterator[Finding]:
    """Report a job type with claimable jobs, if none is claimed. Clients that claim jobs don't announce themselves."""
    name, _, kind = queue.queue.partition("/")
    if not queue.claimed:
        option = "" if name == "jobs" else f" --name {quote(name)}"
        text = f"{count(queue.ready, 'job')} of type {kind} can be claimed, but no worker has claimed one"
        yield Finding("unclaimed", text, f"penstock jobs list --type {quote(kind)}{option}")


def _limited(queue: QueueStats, limit: int, oldest: float) -> Finding:
    return Finding(
        "limited",
        f"queue {queue.queue} has reached its limit of {limit:,} claimed at a time, and its oldest event has waited "
        f"{age(oldest)}; raise the limit",
        f"penstock limit {quote(queue.queue)} {limit * 2}",
        "info",
    )


def _slow(queue: QueueStats, kind: str, oldest: float) -> Finding:
    help_it = "add workers" if kind == "worker" else "increase the relay's parallelism"
    return Finding(
        "slow",
        f"the oldest event in queue {queue.queue} has waited {age(oldest)} although a {kind} is running; "
        f"check for errors, or {help_it}",
        f"penstock events --state pending --queue {quote(queue.queue)}",
    )


def _last_seen(relays: list[RelayStats]) -> str:
    if not relays:
        return "no relay or worker is running"
    kinds = " or ".join(sorted({relay.kind for relay in relays}))
    return f"no {kinds} has been seen for {age(min(relay.seen_seconds_ago for relay in relays))}"


def _expired(stats: Stats) -> Iterator[Finding]:
    """Report expired leases only without a live relay or worker, which would reap them within seconds."""
    if stats.expired_leases and not any(alive(relay) for relay in stats.relays):
        yield Finding(
            "expired", f"{count(stats.expired_leases, 'expired lease')} and no running relay or worker", "penstock reap"
        )


def _dead(stats: Stats) -> Iterator[Finding]:
    if dead := stats.total("dead"):
        yield Finding("dead", f"{_are(dead)} dead{_of(stats, dead)}", "penstock dead list")


def _of(stats: Stats, dead: int) -> str:
    """Return the commonest error of the dead events."""
    error, number = stats.dead_errors[0] if stats.dead_errors else ("", 0)
    kind = first_line(error, ERROR_WIDTH)
    return f"; {'most frequent error' if number < dead else 'error'}: {kind}" if kind else ""


def _snapshot(stats: Stats) -> Iterator[Finding]:
    seconds = stats.oldest_snapshot_seconds
    if seconds is not None and seconds >= OLD_SNAPSHOT_SECONDS:
        yield Finding(
            "old_snapshot",
            f"a transaction has been open for {age(seconds)} and blocks vacuum; "
            "find it by xact_start in pg_stat_activity and end it",
        )


def _are(number: int) -> str:
    return f"{count(number, 'event')} {'is' if number == 1 else 'are'}"
