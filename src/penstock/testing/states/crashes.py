"""Conformance tests for state stores: killed processes, and races between drivers and tasks."""

import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from uuid import UUID

import pytest

from penstock.streams.state.api import Arrival, Fenced, Saved, StatePartition, StateStore, Timer
from penstock.testing.states import dying_process
from penstock.testing.states.scenario import STREAM, OpenState, StateScenario

EVENTS = 120
WAVE = 10
TRIES = 6


class Crashing(StateScenario):
    @pytest.mark.crash
    @pytest.mark.parametrize("point", dying_process.POINTS)
    def test_kill_in_transaction_applies_all_or_nothing(self, store: StateStore, point: str) -> None:
        done = dying(store.url, point).communicate()[0].split()
        assert done == ["1", "2"]
        assert whole(store, 50) == (3 if point == "after commit" else 2)

    @pytest.mark.crash
    @pytest.mark.parametrize("after", [1, 2, 3, 5, 8])
    def test_reported_transactions_survive_kill_at_any_time(self, store: StateStore, after: int) -> None:
        process = dying(store.url, "never", 2_000)
        assert process.stdout is not None
        for _ in range(after):
            process.stdout.readline()
        process.kill()
        done = after + len(process.communicate()[0].splitlines())
        assert whole(store, 2_000) in (done, done + 1)


def dying(url: str, point: str, size: int = 50) -> subprocess.Popen[str]:
    program = f"import sys; from {dying_process.__name__} import main; main(*sys.argv[1:])"
    command = [sys.executable, "-c", program, url, point, str(size)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def whole(store: StateStore, size: int) -> int:
    """Check that a killed process left only complete transactions, as the next driver reads them.

    Return their number.
    """
    part = store.open_part(store.start(dying_process.STREAM, 1), 0)
    keys = [f"key-{place}" for place in range(size)]
    with part.transaction() as transaction:
        number = transaction.reached([dying_process.SOURCE_PART])[dying_process.SOURCE_PART]
        assert transaction.load(keys) == dict.fromkeys(keys, Saved(b"%d" % number))
        names = ("moves", f"wave {number}")
        timers = [Timer(float(number), key, name) for key in sorted(keys) for name in names]
        assert list(transaction.due(float("inf"), 3 * len(timers))) == timers
    entered = {Arrival(f"{wave}-{place}") for wave in range(1, number + 2) for place in range(size)}
    assert StateScenario.entered(part, list(entered)) == {
        one for one in entered if not one.event_id.startswith(f"{number + 1}-")
    }
    ids = [one.event_id for outgoing in part.outgoing() for one in outgoing.events]
    assert ids == [UUID(int=wave) for wave in range(1, number + 1)]
    part.close()
    return number


class Racing(StateScenario):
    def test_racing_drivers_and_tasks_count_each_event_once(self, open_state: OpenState) -> None:
        """Restarting drivers and delayed tasks concurrently add up unacknowledged events and trim the inbox."""
        source = Source(open_state)
        with ThreadPoolExecutor(4) as drivers:
            list(drivers.map(source.race, range(4)))
        source.drive(random.Random(4), late=0)
        assert source.pending == set()
        assert dict(open_state().read(STREAM)) == {"sum": Saved(b"%d" % sum(range(EVENTS)))}


class Source:
    """Numbers to add up, delivered repeatedly until acknowledged."""

    def __init__(self, open_state: OpenState) -> None:
        self._open_state = open_state
        self.pending = set(range(EVENTS))

    def race(self, seed: int) -> None:
        """Start a driver several times; a fenced driver is followed by the next one."""
        chance = random.Random(seed)
        for _ in range(TRIES):
            with suppress(Fenced):
                self.drive(chance, late=0.3)

    def drive(self, chance: random.Random, late: float) -> None:
        """Deliver the pending numbers.

        At random, a task that has been replaced repeats a batch that is already applied.
        """
        store = self._open_state()
        started = store.start(STREAM, 1)
        numbers = sorted(self.pending)
        chance.shuffle(numbers)
        with ExitStack() as stack:
            task = stack.enter_context(closing(store.open_part(started, 0)))
            for start in range(0, len(numbers), WAVE):
                wave = numbers[start : start + WAVE]
                older = task
                if chance.random() < late:
                    task = stack.enter_context(closing(store.open_part(started, 0)))
                add(task, wave)
                self._acknowledge(task, wave)
                if older is not task:
                    with pytest.raises(Fenced):
                        add(older, wave)

    def _acknowledge(self, task: StatePartition, numbers: list[int]) -> None:
        known = StateScenario.entered(task, [Arrival(str(number)) for number in numbers])
        self.pending -= {int(arrival.event_id) for arrival in known}
        task.trim(list(known))


def add(part: StatePartition, numbers: list[int]) -> None:
    with part.transaction() as transaction:
        new = transaction.fresh([Arrival(str(number)) for number in numbers])
        before = transaction.load(["sum"]).get("sum", Saved(b"0"))
        total = int(before.data) + sum(int(arrival.event_id) for arrival in new)
        transaction.save({"sum": Saved(b"%d" % total)})
