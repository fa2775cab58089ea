"""Conformance tests for state stores: timers."""

import random
from typing import NoReturn

import pytest

from penstock.streams.state.api import Fenced, StatePartition, StateStore, Timer
from penstock.testing.states.scenario import STREAM, OpenState, StateScenario

EVER = float("inf")
MANY = 2_500


def held(part: StatePartition, until: float = EVER, limit: int = 10_000) -> list[Timer]:
    with part.transaction() as transaction:
        return list(transaction.due(until, limit))


class Timing(StateScenario):
    def test_timers_are_due_by_time_key_and_name(self, part: StatePartition) -> None:
        assert held(part) == []
        timers = [
            Timer(-5.5, "z", "n"),
            Timer(-1e-3, "z", "n2"),
            Timer(0.0, "z", "n3"),
            Timer(7.0, "a", "n"),
            Timer(7.0, "a\x02", "n"),
            Timer(7.0, "ab", "a"),
            Timer(7.0, "ab", "b"),
            Timer(7.0, "水", "é"),
            Timer(7.000001, "A", "n"),
            Timer(4e9 + 0.25, "B", "n"),
        ]
        shuffled = random.Random(1).sample(timers, len(timers))
        with part.transaction() as transaction:
            transaction.set_timers({(timer.key, timer.name): timer.at for timer in shuffled})
            assert list(transaction.due(EVER, 100)) == timers
        assert held(part) == timers
        assert held(part, 7.0) == timers[:8], "that moment included"
        assert held(part, 6.999999) == timers[:3]
        assert held(part, EVER, 4) == timers[:4]
        assert held(part, EVER, 0) == []

    def test_timers_are_moved_and_cancelled_by_key_and_name(self, part: StatePartition) -> None:
        with part.transaction() as transaction:
            transaction.set_timers({("a", "x"): 1.0, ("a", "y"): 2.0, ("b", "x"): 3.0, ("b", "y"): 4.0})
        with part.transaction() as transaction:
            transaction.set_timers({("a", "x"): 5.0, ("b", "x"): None, ("c", "x"): None})
            assert list(transaction.due(4.0, 9)) == [Timer(2.0, "a", "y"), Timer(4.0, "b", "y")]
            transaction.set_timers({("b", "x"): 2.5, ("a", "y"): None})
            transaction.set_timers({})
            assert list(transaction.due(EVER, 2)) == [Timer(2.5, "b", "x"), Timer(4.0, "b", "y")]
        assert held(part) == [Timer(2.5, "b", "x"), Timer(4.0, "b", "y"), Timer(5.0, "a", "x")]
        with part.transaction() as transaction:
            transaction.set_timers(dict.fromkeys([("a", "x"), ("b", "x"), ("b", "y")]))
        assert held(part) == []

    def test_due_timers_are_read_in_limited_batches(self, part: StatePartition) -> None:
        timers = [Timer(float(number % 50), f"key-{number:04}", "close") for number in range(MANY)]
        with part.transaction() as transaction:
            transaction.set_timers({(timer.key, timer.name): timer.at for timer in timers})
        ordered = sorted(timers)
        assert held(part, EVER, 1_000) == ordered[:1_000]
        with part.transaction() as transaction:
            transaction.set_timers({(timer.key, timer.name): None for timer in ordered[:1_000]})
            assert list(transaction.due(EVER, 1_000)) == ordered[1_000:2_000]
        assert held(part) == ordered[1_000:]

    def test_timers_roll_back_with_transaction(self, part: StatePartition) -> None:
        with part.transaction() as transaction:
            transaction.set_timers({("a", "x"): 1.0})

        def fail() -> NoReturn:
            with part.transaction() as transaction:
                transaction.set_timers({("a", "x"): None, ("b", "x"): 2.0})
                raise KeyError("the handler's own")

        with pytest.raises(KeyError):
            fail()
        assert held(part) == [Timer(1.0, "a", "x")]

    def test_timers_belong_to_state_partition_and_stream(self, store: StateStore) -> None:
        started, other = store.start(STREAM, 2), store.start("other", 1)
        parts = [store.open_part(started, 0), store.open_part(started, 1), store.open_part(other, 0)]
        for number, part in enumerate(parts):
            with part.transaction() as transaction:
                transaction.set_timers({("a", "x"): float(number)})
        assert [held(part) for part in parts] == [[Timer(float(number), "a", "x")] for number in range(3)]
        for part in parts:
            part.close()

    def test_fenced_task_sets_no_timers(self, open_state: OpenState) -> None:
        store = open_state()
        older = store.open_part(store.start(STREAM, 1), 0)
        newer = open_state()
        taken = newer.open_part(newer.start(STREAM, 1), 0)
        with pytest.raises(Fenced), older.transaction() as transaction:
            transaction.set_timers({("a", "x"): 1.0})
        assert held(taken) == []
        taken.close()
        older.close()
