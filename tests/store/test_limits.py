"""Pauses and limits under concurrent claims on PostgreSQL: never more events than allowed, none after a pause, and all
of them handled in the end."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from random import Random
from threading import Event as Flag
from threading import Lock

import psycopg
import pytest

from penstock.model.event import Event
from penstock.model.lease import Claim
from penstock.model.outcome import PUBLISHED, RELEASED, Outcome
from penstock.store.registry import open_store
from penstock.store.sql.store import SqlStore
from tests.support.processes import wait_until

EVENTS = 400
LIMIT = 5
CLAIMED = "SELECT count(*) FROM penstock_claimed WHERE queue = 'outbox'"
DEADLINE_SECONDS = 90.0


@pytest.fixture
def store(postgres_url: str) -> Iterator[SqlStore]:
    with closing(open_store(postgres_url)) as store:
        store.initialise()
        yield store


def emit(store: SqlStore, count: int) -> None:
    """Emit events, some with ordering keys and some with priorities: each kind is claimed in a different way."""
    dice = Random(count)
    keys = [f"key-{dice.randrange(9)}" if dice.random() < 0.3 else None for _ in range(count)]
    store.append([Event(event_type="t", ordering_key=key, priority=0 if key else dice.choice([0, 5])) for key in keys])


def claimed(connection: "psycopg.Connection[tuple[int]]") -> int:
    row = connection.execute(CLAIMED).fetchone()
    assert row is not None
    return row[0]


def left(store: SqlStore) -> int:
    stats = store.stats()
    return stats.total("pending") + stats.total("claimed")


class Claimers:
    """Threads, each with a separate store, that claim and settle until `end`."""

    def __init__(self, url: str, count: int, check: Callable[[int, Claim], None]) -> None:
        self._url = url
        self._check = check
        self._stop = Flag()
        self._threads = ThreadPoolExecutor(count)
        self._lock = Lock()
        self.began: list[tuple[float, int]] = []
        """Start time (monotonic) and number of events of each claim."""
        self.handled: Counter[int] = Counter()
        self._work: list[Future[None]] = [self._threads.submit(self._claim_on, number) for number in range(count)]

    def __enter__(self) -> "Claimers":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Stop the threads; raise the error of a failed one."""
        self._stop.set()
        self._threads.shutdown()
        for work in self._work:
            work.result()

    @property
    def failed(self) -> bool:
        return any(work.done() for work in self._work)

    def since(self, moment: float) -> list[int]:
        """Return the number of events of each claim that began after `moment`."""
        with self._lock:
            return [brought for began, brought in self.began if began > moment]

    def _claim_on(self, number: int) -> None:
        dice = Random(number)
        with closing(open_store(self._url)) as store:
            while not self._stop.is_set():
                began = time.monotonic()
                claim = store.claim("outbox", limit=dice.randint(1, 4), claimant=f"thread-{number}")
                with self._lock:
                    self.began.append((began, len(claim)))
                if claim:
                    self._check(number, claim)
                    self._settle(store, claim, dice)

    def _settle(self, store: SqlStore, claim: Claim, dice: Random) -> None:
        outcomes: dict[int, Outcome] = {one.seq: PUBLISHED for one in claim.events}
        if dice.random() < 0.1:
            outcomes = dict.fromkeys(outcomes, RELEASED)
        settled = store.settle(claim.lease, outcomes)
        assert settled.published | settled.released == outcomes.keys()
        with self._lock:
            self.handled.update(settled.published)


def test_claimed_events_never_exceed_limit(store: SqlStore, postgres_url: str) -> None:
    """The limit must hold in every snapshot of the table. Each thread checks during a claim, a watcher all the time."""
    emit(store, EVENTS)
    store.limit("outbox", LIMIT)
    full = Flag()

    def look(number: int, claim: Claim) -> None:
        """Check the limit. Hold the first claims until the queue is full, so that later claims compete for the room."""
        held = claimed(looks[number])
        while held < LIMIT and not full.is_set():
            held = claimed(looks[number])
        full.set()
        assert len(claim) <= held <= LIMIT

    with ExitStack() as opened:
        *looks, watcher = [opened.enter_context(psycopg.connect(postgres_url, autocommit=True)) for _ in range(9)]
        claimers = opened.enter_context(Claimers(postgres_url, 8, look))

        def drained() -> bool:
            assert claimed(watcher) <= LIMIT
            return claimers.failed or left(store) == 0

        assert wait_until(drained, DEADLINE_SECONDS)
    assert full.is_set()
    assert sorted(claimers.handled.values()) == [1] * EVENTS
    assert store.stats().total("published") == EVENTS


def test_limit_change_applies_to_later_claims(store: SqlStore, postgres_url: str) -> None:
    """A lowered limit applies to later claims; events claimed before may exceed the limit until they are settled."""
    store.limit("outbox", LIMIT)
    with Claimers(postgres_url, 4, lambda *_: None) as claimers:
        for limit in (1, 3, None, 2, LIMIT):
            store.limit("outbox", limit)
            emit(store, 100)
            changed = time.monotonic()
            assert wait_until(lambda: claimers.failed or len(claimers.since(changed)) > 8, DEADLINE_SECONDS)  # noqa: B023
            assert limit is None or max(claimers.since(changed)) <= limit
        assert wait_until(lambda: claimers.failed or left(store) == 0, DEADLINE_SECONDS)
    assert sorted(claimers.handled.values()) == [1] * 500


@pytest.mark.parametrize("limit", [None, LIMIT])
def test_claims_after_pause_return_no_events(store: SqlStore, postgres_url: str, limit: int | None) -> None:
    store.limit("outbox", limit)
    emit(store, EVENTS)
    with Claimers(postgres_url, 4, lambda *_: None) as claimers:
        for _ in range(5):
            resumed = time.monotonic()
            assert wait_until(lambda: claimers.failed or any(claimers.since(resumed)), DEADLINE_SECONDS)  # noqa: B023
            store.pause("outbox")
            paused = time.monotonic()
            emit(store, 40)
            assert wait_until(lambda: claimers.failed or len(claimers.since(paused)) >= 40, DEADLINE_SECONDS)  # noqa: B023
            assert not any(claimers.since(paused))
            store.resume("outbox")
        assert wait_until(lambda: claimers.failed or left(store) == 0, DEADLINE_SECONDS)
    assert sorted(claimers.handled.values()) == [1] * (EVENTS + 5 * 40)
