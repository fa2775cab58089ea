"""Relays with a step, in separate processes, killed between dispatch and settlement: no event is lost, and only the
events of the in-flight batch are delivered twice."""

import os
import signal
import time
from pathlib import Path

import pytest
from relay_processes import IN_HAND, RelayProcess, assert_delivered, emit
from step_env import Ground

from penstock.model.lifecycle import State
from tests.support.processes import wait_until

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.slow]

WAIT_SECONDS = 180.0
END_SECONDS = 60.0
STEP = "step_functions:unchanged"


@pytest.fixture(autouse=True)
def steps_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))


def process(ground: Ground, **given: object) -> RelayProcess:
    options = {"store": ground.url, "destination": f"file://{ground.files}", "step": STEP, **given}
    return RelayProcess(ground.folder, **options)  # type: ignore[arg-type]


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("crash", ["in-publish:2:family", "in-settle:1:family", "after-settle:1:family"])
def test_no_event_is_lost_if_driver_is_killed(ground: Ground, crash: str) -> None:
    """The driver is killed during dispatch; after it, but before settling; and after settling one lease of two.

    In no case has Spark's log recorded the batch. The next driver has the same checkpoint: it runs the batch again and
    need not wait for its leases to expire.
    """
    checkpoint = f"{ground.folder}/checkpoint"
    ids = emit(ground.outbox, 1_000)
    with process(ground, crash=crash, checkpoint=checkpoint, lease_seconds=600.0) as killed:
        assert killed.wait() == -signal.SIGKILL, killed.log
    assert ground.states()[State.CLAIMED] > 0
    ground.relay(STEP, checkpoint=checkpoint, lease_seconds=600.0, batch=200)
    assert_delivered(ids, ground.published(), repeats=IN_HAND)
    assert ground.states() == {State.PUBLISHED: 1_000}
    ground.assert_nothing_held()


def test_poison_event_becomes_dead_letter_alone(ground: Ground) -> None:
    outbox = ground.outbox
    events = [outbox.event("food", {"number": number}) for number in range(30)]
    ids = outbox.emit_many([*events, outbox.event("poison", {"dose": "arsenic"}, max_attempts=1)])
    with process(ground, crash="poison:arsenic", lease_seconds=60.0, once=True) as relay:
        assert relay.wait(120) == 0, relay.log
    assert set(ground.published()) == {str(event_id) for event_id in ids[:-1]}
    (dead,) = ground.in_state(State.DEAD)
    assert (dead.event_type, ground.states()[State.PUBLISHED]) == ("poison", 30)
    assert dead.last_error is not None
    assert dead.last_error.startswith("step failed: ")


def test_sigterm_ends_busy_relay_without_open_leases(ground: Ground) -> None:
    emit(ground.outbox, 20_000)
    with process(ground, lease_seconds=60.0, batch=1_000) as relay:
        assert wait_until(lambda: ground.outbox.store.stats().total("published") > 0, WAIT_SECONDS), relay.log
        started = time.monotonic()
        relay.terminate()
        assert relay.wait() == 0, relay.log
        assert time.monotonic() - started < END_SECONDS
    published = {str(one.event_id) for one in ground.in_state(State.PUBLISHED)}
    assert ground.published() == dict.fromkeys(published, 1)
    assert relay.report["published"] == len(published)
    ground.assert_nothing_held()
