"""Workers killed by their events or at random: no event is lost, and exactly-once effects happen once."""

import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import text
from worker_processes import start
from worker_watch import Watch

from penstock import Outbox
from penstock.model.lifecycle import State
from penstock.model.selection import Selection
from penstock.store.sql.store import SqlStore

pytestmark = [pytest.mark.crash, pytest.mark.timeout(180)]

SECONDS = 120.0
KILLS = 12


@pytest.fixture
def url(postgres_url: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    return f"sqlite:///{tmp_path / 'events.db'}" if request.param == "sqlite" else postgres_url


def settled(watch: Watch) -> bool:
    return not {State.PENDING, State.CLAIMED} & watch.states().keys()


@pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)
def test_poison_event_becomes_dead_letter_alone(outbox: Outbox, watch: Watch, store: SqlStore) -> None:
    """In each of two queues one event kills its process; the test restarts the worker as a supervisor would.

    In the end only these two events are dead. All others are handled, although they shared a process and a batch.
    """
    outbox.emit_many([outbox.event("x", "poison" if n == 30 else f"good {n}", queue="mixed") for n in range(100)])
    outbox.emit_many([outbox.event("x", "poison" if n == 5 else f"fine {n}", queue="beside") for n in range(20)])
    deaths = 0
    until = time.monotonic() + SECONDS
    process = start("poison", store.engine.url.render_as_string(hide_password=False))
    try:
        while not settled(watch) and time.monotonic() < until:
            if process.poll() is not None:
                assert process.returncode == 9
                deaths += 1
                process = start("poison", store.engine.url.render_as_string(hide_password=False))
            time.sleep(0.05)
    finally:
        process.terminate()
        process.wait()
    found = store.find(Selection(everything=True), limit=1_000).records
    assert Counter(record.state for record in found) == {State.PUBLISHED: 118, State.DEAD: 2}
    assert {record.payload for record in found if record.state is State.DEAD} == {b"poison"}
    assert 3 <= deaths <= 5, "three deliveries of the one, two attempts of the other, perhaps at the same time"


@pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)
def test_effects_in_same_database_happen_exactly_once(
    outbox: Outbox, watch: Watch, store: SqlStore, record_property: Callable[[str, object], None]
) -> None:
    """Kill three worker processes at random: writes in the event's transaction happen exactly once."""
    seed = random.randrange(2**32)
    record_property("seed", seed)
    print(f"seed {seed}")
    chance = random.Random(seed)
    with store.transaction() as connection:
        connection.execute(text("CREATE TABLE effects (number integer)"))
    url = store.engine.url.render_as_string(hide_password=False)
    workers = [start("effects", url) for _ in range(3)]
    kills = 0
    until = time.monotonic() + SECONDS
    try:
        while (kills < KILLS or not settled(watch)) and time.monotonic() < until:
            if kills < KILLS:
                outbox.emit_many([outbox.event("x", str(50 * kills + number)) for number in range(50)])
            time.sleep(chance.uniform(0.2, 0.6))
            if kills < KILLS:
                victim = chance.randrange(3)
                workers[victim].kill()
                workers[victim].wait()
                workers[victim] = start("effects", url)
                kills += 1
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait()
    assert kills == KILLS
    assert watch.states() == {State.PUBLISHED: 50 * KILLS}
    with store.transaction() as connection:
        done = Counter(connection.execute(text("SELECT number FROM effects")).scalars())
    assert done == dict.fromkeys(range(50 * KILLS), 1)


KILLED_AT = [
    *(
        ("plain", point)
        for point in ("in-claim:2", "after-claim:2", "after-handler:5", "in-settle:2", "after-settle:2")
    ),
    *(("effects", point) for point in ("after-claim:2", "in-transaction:5", "after-transaction:5", "after-handler:5")),
]


@pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)
@pytest.mark.parametrize(("kind", "point"), KILLED_AT)
def test_kill_at_crash_point_loses_no_event(
    outbox: Outbox, watch: Watch, store: SqlStore, tmp_path: Path, kind: str, point: str
) -> None:
    """No event is lost wherever a worker is killed; with the event's transaction, no effect is duplicated."""
    with store.transaction() as connection:
        connection.execute(text("CREATE TABLE effects (number integer)"))
    outbox.emit_many([outbox.event("x", str(number)) for number in range(60)])
    url, plan = store.engine.url.render_as_string(hide_password=False), tmp_path / "plan.txt"
    plan.write_text(point)
    doomed = start(kind, url, f"@{plan}")
    assert doomed.wait(60) == -9
    assert plan.with_name("plan.txt.fired").exists()
    assert not settled(watch)
    survivor = start(kind, url)
    try:
        watch.until(published=60)
    finally:
        survivor.terminate()
        assert survivor.wait(60) == 0
    with store.transaction() as connection:
        done = Counter(connection.execute(text("SELECT number FROM effects")).scalars())
    assert done.keys() == set(range(60))
    assert kind == "plain" or set(done.values()) == {1}
