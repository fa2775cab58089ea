"""What an operator should know about a store, in plain words, with the command that helps. Pure: from `Stats` alone."""

from collections.abc import Iterator
from dataclasses import dataclass

from penstock.admin.wording import age, count, first_line
from penstock.event import DEFAULT_QUEUE
from penstock.store.base import QueueStats, RelayStats, Stats

# A relay announces itself every few seconds; one that has missed this many is gone or hangs.
RELAY_SILENT_SECONDS = 30.0
# Emitting is a burst at times: only what has waited this long says something.
UNRELAYED_SECONDS = 5.0
SLOW_SECONDS = 60.0
OLD_SNAPSHOT_SECONDS = 600.0
ERROR_WIDTH = 80


@dataclass(frozen=True, slots=True)
class Finding:
    """`code` is for programs, `text` for people; `command` is what to type, where typing helps."""

    code: str
    text: str
    command: str | None = None

    def __str__(self) -> str:
        return f"{self.text}: {self.command}" if self.command else self.text


def findings(stats: Stats) -> list[Finding]:
    """Everything worth saying, the most pressing first; nothing means that all is well."""
    found = [finding for queue in stats.queues for finding in _waiting(queue, stats)]
    return [*found, *_expired(stats), *_dead(stats), *_snapshot(stats)]


def alive(relay: RelayStats) -> bool:
    return relay.seen_seconds_ago <= RELAY_SILENT_SECONDS


def _waiting(queue: QueueStats, stats: Stats) -> Iterator[Finding]:
    oldest = queue.oldest_pending_seconds or 0.0
    if not queue.ready or oldest < UNRELAYED_SECONDS:
        return
    relays = [relay for relay in stats.relays if relay.queue == queue.queue]
    option = "" if queue.queue == DEFAULT_QUEUE else f" --queue {queue.queue}"
    if not any(alive(relay) for relay in relays):
        yield Finding(
            "no_relay",
            f"{_are(queue.ready)} pending in queue {queue.queue} and {_last_seen(relays)}",
            f"penstock relay --to URL{option}",
        )
    elif oldest >= SLOW_SECONDS:
        yield Finding(
            "slow",
            f"the oldest event in queue {queue.queue} has waited {age(oldest)} although a relay runs; "
            "look for errors, or give the relay more parallelism",
            f"penstock events --state pending --queue {queue.queue}",
        )


def _last_seen(relays: list[RelayStats]) -> str:
    if not relays:
        return "no relay is running"
    return f"no relay has been seen for {age(min(relay.seen_seconds_ago for relay in relays))}"


def _expired(stats: Stats) -> Iterator[Finding]:
    """A live relay reaps within seconds: only without one do expired leases stay."""
    if stats.expired_leases and not any(alive(relay) for relay in stats.relays):
        yield Finding("expired", f"{count(stats.expired_leases, 'lease')} expired and nobody reaps", "penstock reap")


def _dead(stats: Stats) -> Iterator[Finding]:
    if dead := stats.total("dead"):
        yield Finding("dead", f"{_are(dead)} dead{_of(stats, dead)}", "penstock events --state dead")


def _of(stats: Stats, dead: int) -> str:
    """The commonest error among the dead."""
    error, number = stats.dead_errors[0] if stats.dead_errors else ("", 0)
    told = first_line(error, ERROR_WIDTH)
    return f"{', mostly of' if number < dead else ' of'}: {told}" if told else ""


def _snapshot(stats: Stats) -> Iterator[Finding]:
    seconds = stats.oldest_snapshot_seconds
    if seconds is not None and seconds >= OLD_SNAPSHOT_SECONDS:
        yield Finding(
            "old_snapshot",
            f"a transaction has been open for {age(seconds)} and holds up vacuum; "
            "find it in pg_stat_activity by its xact_start, and end it",
        )


def _are(number: int) -> str:
    return f"{count(number, 'event')} {'is' if number == 1 else 'are'}"
