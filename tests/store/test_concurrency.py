"""Many processes on one store, some of them killed: no event is lost, settled twice, settled under a stale token or
published out of order. Triggers log each transition; `penstock.model.lifecycle` decides which ones are legal."""

import multiprocessing
import os
import random
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path

import audit
import claimers
import psycopg
import pytest
from claimers import Ring, some_event
from databases import connect_mysql

from penstock.model.lifecycle import State
from penstock.model.selection import Selection
from penstock.store.registry import open_store
from penstock.store.sql.store import SqlStore
from tests.support.processes import wait_until

pytestmark = pytest.mark.crash

CALM_SECONDS = 60.0
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["claimers"])


KILLS = 10


class Processes:
    """The processes of a run; kills claimers and replaces them."""

    def __init__(self, ring: Ring, claimers_wanted: int) -> None:
        self.ring = ring
        self.random = random.Random(ring.seed)
        self.kills = 0
        self._number = 0
        self.others = [self._start(claimers.reaper, "reaper") for _ in range(2)]
        self.claimers = [self._start(claimers.claimer, "claimer") for _ in range(claimers_wanted)]

    def _start(self, role: claimers.Role, name: str, *args: object) -> BaseProcess:
        self._number += 1
        who = f"{name}-{self._number}"
        process = PROCESSES.Process(target=role, name=who, args=(self.ring, who, *args), daemon=True)
        process.start()
        return process

    def emit(self, count: int) -> None:
        self.others.append(self._start(claimers.emitter, "emitter", count))

    def kill_one(self) -> None:
        """Kill a claimer at an arbitrary point and start another one. Spare claimers that have not settled anything."""
        at_work = [place for place, one in enumerate(self.claimers) if self.ring.said(one.name)]
        if not at_work:
            return
        place = self.random.choice(at_work)
        self.claimers[place].kill()
        self.claimers[place].join()
        self.kills += 1
        self.claimers[place] = self._start(claimers.claimer, "claimer")

    def end(self) -> None:
        self.ring.say("stop")
        for process in (*self.claimers, *self.others):
            process.join(60)
            process.kill()

    def errors(self) -> list[str]:
        return [path.read_text() for path in self.ring.folder.glob("*.error")]


@contextmanager
def running(ring: Ring, claimers_wanted: int) -> Iterator[Processes]:
    processes = Processes(ring, claimers_wanted)
    try:
        yield processes
    finally:
        processes.end()


@pytest.fixture
def seed() -> int:
    """A new seed for each run. PENSTOCK_SEED repeats a run, except for the order of the scheduler."""
    seed = int(os.environ.get("PENSTOCK_SEED") or random.randrange(10**6))
    print(f"PENSTOCK_SEED={seed}")
    return seed


def run(ring: Ring, store: SqlStore, *, events: int, claimers_wanted: int, seconds: float) -> list[audit.Seen]:
    """Emit, let processes compete and fail, let them settle the rest without failures, and return the log."""
    dice = random.Random(ring.seed)
    early = events * 4 // 5
    for _ in range(early // 1_000):
        store.append([some_event(dice) for _ in range(1_000)])
    store.append([some_event(dice) for _ in range(early % 1_000)])
    with running(ring, claimers_wanted) as processes:
        processes.emit(events - early)
        began, replayed = time.monotonic(), 0
        while time.monotonic() < began + seconds or (
            time.monotonic() < began + 15 * seconds and not (processes.kills >= KILLS and tried_again(store))
        ):
            time.sleep(0.3)
            processes.kill_one()
            replayed += replay_some(store, dice)
        ring.say("calm")
        drained = wait_until(
            lambda: processes.errors() != [] or (ring.said("emitted") and left(store) == 0), CALM_SECONDS
        )
    assert processes.errors() == []
    assert drained, store.stats()
    assert processes.kills >= KILLS
    assert replayed > 0
    with closing(ring.connect()) as connection:
        return audit.read(connection)


def tried_again(store: SqlStore) -> bool:
    """Return True if an event was tried more than once, which takes longer on a slow machine."""
    found = store.find(Selection(everything=True), limit=100_000).records
    return any(record.attempts > 1 for record in found)


def left(store: SqlStore) -> int:
    stats = store.stats()
    return stats.total("pending") + stats.total("claimed")


def replay_some(store: SqlStore, dice: random.Random) -> int:
    """Replay some published events without an ordering key. An event with a key would rightly be published after later
    events of its key, and the audit would report it."""
    found = store.find(Selection(states=frozenset({State.PUBLISHED})), limit=200).records
    chosen = [record.event_id for record in found if record.ordering_key is None and dice.random() < 0.2]
    return store.replay(Selection(ids=frozenset(chosen)))


def judge(log: list[audit.Seen], events: int) -> None:
    assert audit.illegal_moves(log, claimers.MAX_ATTEMPTS) == []
    assert audit.settled_twice(log) == []
    assert audit.stale_settles(log) == []
    assert audit.shared_keys(log) == []
    assert audit.out_of_order(log) == []
    ends = {line.seq: line.what for line in audit.moves(log)}
    assert len(ends) == events
    assert set(ends.values()) <= {"PUBLISHED", "DEAD"}
    # The processes did compete: leases were lost and taken over, and events tried again.
    tokens = [line.lease_id for line in log if line.what == "token"]
    assert len(tokens) > len(set(tokens))
    assert max(line.suspect for line in audit.moves(log)) > 0
    assert any(line.attempts > 1 for line in audit.moves(log))
    assert audit.count(log, "settled") > events


def test_event_log_is_legal_despite_kills_on_postgres(postgres_url: str, tmp_path: Path, seed: int) -> None:
    with closing(open_store(postgres_url)) as store, closing(psycopg.connect(postgres_url)) as connection:
        store.initialise()
        connection.execute(audit.POSTGRES)
        connection.commit()
        ring = Ring(postgres_url, tmp_path, seed, most=80)
        judge(run(ring, store, events=20_000, claimers_wanted=8, seconds=10), 20_000)
        found = connection.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        assert found.fetchone() == (0,)


def test_event_log_is_legal_despite_kills_on_mariadb(mariadb_url: str, tmp_path: Path, seed: int) -> None:
    with closing(open_store(mariadb_url)) as store, closing(connect_mysql(mariadb_url)) as connection:
        store.initialise()
        for statement in audit.MYSQL:
            connection.execute(statement)
        ring = Ring(mariadb_url, tmp_path, seed, most=80)
        judge(run(ring, store, events=8_000, claimers_wanted=8, seconds=10), 8_000)


def test_event_log_is_legal_despite_kills_on_sqlite(tmp_path: Path, seed: int) -> None:
    url = f"sqlite:///{tmp_path / 'penstock.db'}"
    with closing(open_store(url)) as store, closing(sqlite3.connect(tmp_path / "penstock.db")) as connection:
        store.initialise()
        connection.executescript(audit.SQLITE)
        judge(run(Ring(url, tmp_path, seed, most=24), store, events=3_000, claimers_wanted=4, seconds=6), 3_000)
