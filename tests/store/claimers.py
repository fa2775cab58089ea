"""Processes that compete for one store and are killed by the tests: claimers that fail, sleep, abandon claims and claim
under lease ids that others use too; reapers; and an emitter that meanwhile adds events to ordering keys."""

import sqlite3
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID, uuid5

import psycopg
import pymysql
from databases import MysqlConnection, connect_mysql

from penstock.model.errors import StoreConflict
from penstock.model.event import Event
from penstock.model.lease import Claim, Lease, LeaseId, Settlement
from penstock.model.outcome import PUBLISHED, RELEASED, Dead, Outcome, Retry
from penstock.store.registry import open_store
from penstock.store.sql.store import SqlStore

MAX_ATTEMPTS = 8
LEASE_SECONDS = 0.5
QUERY = UUID(int=7)
KEYS = 60


@dataclass(frozen=True, slots=True)
class Ring:
    """Store and settings of a run; `most` is the largest limit of a claim. Files in the folder are signals: `calm` ends
    the failures, `stop` ends the processes, and a file named after a process shows that it has settled a claim."""

    url: str
    folder: Path
    seed: int
    most: int

    def said(self, word: str) -> bool:
        return (self.folder / word).exists()

    def say(self, word: str) -> None:
        (self.folder / word).touch()

    def connect(self) -> Any:
        """Open a connection of the database's own driver, which begins a transaction at the first statement."""
        if self.url.startswith("sqlite"):
            return sqlite3.connect(self.url.removeprefix("sqlite:///"), timeout=30)
        if self.url.startswith("mysql"):
            return connect_mysql(self.url, "READ COMMITTED")
        return psycopg.connect(self.url)

    @contextmanager
    def store(self, who: str) -> Iterator[SqlStore]:
        """Open the store of a process. Write an exception to the file `<who>.error`; a killed process leaves none."""
        store = open_store(self.url)
        try:
            yield store
        except Exception:
            (self.folder / f"{who}.error").write_text(traceback.format_exc())
            raise
        finally:
            store.close()


def claimer(ring: Ring, who: str) -> None:
    random = Random(f"{ring.seed}-{who}")
    with ring.store(who) as store:
        connection = ring.connect()
        while not ring.said("stop"):
            claimed = take(store, ring, random, who)
            if not claimed:
                time.sleep(0.005)
            elif ring.said("calm") or will_settle(store, random, claimed):
                settle(store, connection, random, claimed, ring.said("calm"))
                ring.say(who)
        connection.close()


def take(store: SqlStore, ring: Ring, random: Random, who: str) -> Claim:
    """Claim under a new lease id, or under one that other claimers use at about the same time."""
    calm = ring.said("calm")
    shared = uuid5(QUERY, str(int(time.time() * 10) - random.randint(0, 2)))
    return store.claim(
        "outbox",
        limit=500 if calm else random.choice([1, ring.most // 4, ring.most]),
        claimant=who,
        lease_seconds=10.0 if calm else LEASE_SECONDS,
        lease_id=LeaseId(shared) if not calm and random.random() < 0.6 else None,
        max_attempts=MAX_ATTEMPTS,
    )


def will_settle(store: SqlStore, random: Random, claimed: Claim) -> bool:
    """Return True if the claimer will settle its claim, in time or late."""
    chance = random.random()
    if chance < 0.03:
        return False
    if chance < 0.06:
        store.release(claimed.lease)
        return False
    if chance < 0.09:
        time.sleep(LEASE_SECONDS * 1.5)
    elif chance < 0.2:
        store.extend([claimed.lease])
    elif chance < 0.5:
        time.sleep(random.random() * 0.2)
    return True


def settle(store: SqlStore, connection: Any, random: Random, claimed: Claim, calm: bool) -> None:
    outcomes = list(decide(random, claimed, calm).items())
    cut = len(outcomes) if random.random() < 0.7 else random.randint(0, len(outcomes))
    for part in (dict(outcomes[:cut]), dict(outcomes[cut:])):
        settled = settle_until_it_wins(store, connection, claimed.lease, part)
        assert (
            settled.published
            | settled.dead
            | settled.retried
            | settled.released
            | settled.lost
            | settled.already_settled
            == set(part)
        )


def settle_until_it_wins(store: SqlStore, connection: Any, lease: Lease, part: dict[int, Outcome]) -> Settlement:
    """Repeat the settle until it commits. MySQL may roll back this transaction to end a deadlock, and only its owner
    can start it again."""
    while True:
        try:
            settled = store.settle_in(connection, lease, part)
            log(connection, lease, settled.published | settled.dead | settled.retried | settled.released)
            connection.commit()
        except (StoreConflict, pymysql.OperationalError):
            if not isinstance(connection, MysqlConnection):
                raise
            connection.rollback()
        else:
            return settled


def decide(random: Random, claimed: Claim, calm: bool) -> dict[int, Outcome]:
    """Choose an outcome for each event. After a retry, release the later events of its ordering key as untried."""
    failed: set[str] = set()
    outcomes: dict[int, Outcome] = {}
    for event in claimed.events:
        if event.ordering_key in failed:
            outcomes[event.seq] = RELEASED
        elif calm or random.random() < 0.9:
            outcomes[event.seq] = PUBLISHED
        else:
            outcomes[event.seq] = random.choice([Retry("no", 0), Retry("no", 0.05), Retry("no", 0), Dead("never")])
            if isinstance(outcomes[event.seq], Retry) and event.ordering_key:
                failed.add(event.ordering_key)
    return outcomes


def log(connection: Any, lease: Lease, settled: frozenset[int]) -> None:
    """Record the lease and token of a settle, in the transaction of the settle."""
    ids = (lease.lease_id, lease.token)
    if isinstance(connection, sqlite3.Connection):
        rows = [("settled", seq, *(one.hex for one in ids)) for seq in settled]
        connection.executemany("INSERT INTO seen (what, seq, lease_id, token) VALUES (?, ?, ?, ?)", rows)
    elif isinstance(connection, MysqlConnection):
        rows = [("settled", seq, *(one.bytes for one in ids)) for seq in settled]
        connection.cursor().executemany("INSERT INTO seen (what, seq, lease_id, token) VALUES (%s, %s, %s, %s)", rows)
    elif settled:
        statement = "INSERT INTO seen (what, seq, lease_id, token) SELECT 'settled', n, %s, %s FROM unnest(%s) n"
        connection.execute(statement, [*ids, list(settled)])


def reaper(ring: Ring, who: str) -> None:
    with ring.store(who) as store:
        while not ring.said("stop"):
            store.reap(limit=1_000)
            time.sleep(0.03)


def emitter(ring: Ring, who: str, count: int) -> None:
    """Emit events in batches of 1, 7 or 30 while the other processes run."""
    random = Random(f"{ring.seed}-{who}")
    with ring.store(who) as store:
        while count > 0:
            size = min(count, random.choice([1, 7, 30]))
            store.append([some_event(random) for _ in range(size)])
            count -= size
    ring.say("emitted")


def some_event(random: Random) -> Event:
    key = f"key-{random.randrange(KEYS)}" if random.random() < 0.3 else None
    return Event(event_type="t", ordering_key=key, priority=random.choice([0, 0, 0, 5]) if key is None else 0)


Role = Callable[..., None]
