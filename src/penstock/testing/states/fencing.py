"""Conformance tests for state stores: newer drivers and tasks fence older ones."""

import threading
from dataclasses import replace

import pytest

from penstock.model.errors import UsageError
from penstock.streams.state.api import Fenced, Saved, StateStore
from penstock.testing.states.scenario import ARRIVALS, STREAM, OpenState, StateScenario, save


class FencingTasks(StateScenario):
    def test_new_driver_takes_next_epoch_and_keeps_partition_count(self, open_state: OpenState) -> None:
        started = [open_state().start(STREAM, parts) for parts in (3, 5, 1)]
        assert [(one.epoch, one.parts) for one in started] == [(1, 3), (2, 3), (3, 3)]
        assert open_state().start("other", 2).epoch == 1
        assert [(one.stream, one.epoch, one.parts) for one in open_state().streams()] == [
            (STREAM, 3, 3),
            ("other", 1, 2),
        ]

    @pytest.mark.parametrize("parts", [0, -1])
    def test_stream_without_state_partition_is_refused(self, store: StateStore, parts: int) -> None:
        with pytest.raises(UsageError, match="part"):
            store.start(STREAM, parts)

    @pytest.mark.parametrize("name", ["../up", "..", "a/b", "A b%2F", "水"])
    def test_stream_can_have_any_name(self, store: StateStore, name: str) -> None:
        started = [store.start(one, 1) for one in (name, STREAM)]
        parts = [store.open_part(one, 0) for one in started]
        save(parts[0], "a", b"1")
        assert list(store.read(name)) == [("a", Saved(b"1"))]
        assert list(store.read(STREAM)) == []
        assert {one.stream for one in store.streams()} == {name, STREAM}
        for part in parts:
            part.close()

    def test_older_driver_is_fenced(self, open_state: OpenState) -> None:
        first, second = open_state(), open_state()
        older = first.start(STREAM, 2)
        part = first.open_part(older, 0)
        save(part, "a", b"older")
        with part.transaction() as transaction:
            transaction.fresh(ARRIVALS)
        newer = second.start(STREAM, 2)
        with pytest.raises(Fenced, match="driver"), part.transaction() as transaction:
            transaction.save({"a": Saved(b"too late")})
        with pytest.raises(Fenced, match="driver"):
            part.trim(ARRIVALS)
        for number in range(2):
            with pytest.raises(Fenced, match="driver"):
                first.open_part(older, number)
        assert dict(second.read(STREAM)) == {"a": Saved(b"older")}
        taken = second.open_part(newer, 0)
        assert self.entered(taken, ARRIVALS) == set(ARRIVALS)
        save(taken, "a", b"newer")
        assert dict(second.read(STREAM)) == {"a": Saved(b"newer")}
        taken.close()
        part.close()

    def test_older_task_is_fenced(self, open_state: OpenState) -> None:
        store = open_state()
        started = store.start(STREAM, 2)
        older = store.open_part(started, 1)
        save(older, "a", b"older")
        newer = open_state().open_part(started, 1)
        with pytest.raises(Fenced, match="task"), older.transaction() as transaction:
            transaction.save({"a": Saved(b"too late")})
        save(newer, "b", b"newer")
        with pytest.raises(Fenced, match="task"), older.transaction():
            pass
        assert dict(store.read(STREAM)) == {"a": Saved(b"older"), "b": Saved(b"newer")}
        older.close()
        save(newer, "c", b"newer")
        newer.close()

    def test_task_of_earlier_spark_job_is_fenced(self, open_state: OpenState) -> None:
        store = open_state()
        started = store.start(STREAM, 2)
        for job in (5, 5, 6):
            newer = store.open_part(replace(started, job=job), 1)
            save(newer, "a", b"%d" % job)
            newer.close()
        with pytest.raises(Fenced, match="later job"):
            open_state().open_part(replace(started, job=5), 1)
        open_state().open_part(replace(started, job=5), 0).close()
        restarted = store.start(STREAM, 2)
        part = store.open_part(restarted, 1)  # another driver numbers its jobs from the beginning
        save(part, "b", b"0")
        part.close()
        assert dict(store.read(STREAM)) == {"a": Saved(b"6"), "b": Saved(b"0")}

    def test_transactions_of_state_partitions_are_independent(self, store: StateStore) -> None:
        parts = [store.open_part(started, number) for started in [store.start(STREAM, 2)] for number in range(2)]
        with parts[0].transaction() as one, parts[1].transaction() as other:
            assert (one.fresh(ARRIVALS), other.fresh(ARRIVALS)) == (set(ARRIVALS), set(ARRIVALS))
            one.save({"a": Saved(b"0")})
            other.save({"b": Saved(b"1")})
        for number, part in enumerate(parts):
            with part.transaction() as transaction:
                assert transaction.load(["a", "b"]) == {"ab"[number]: Saved(b"%d" % number)}
            part.close()

    def test_starting_driver_waits_for_running_commit(self, open_state: OpenState) -> None:
        """No transaction of an older epoch commits after `start` has returned: `start` waits for a running commit."""
        store = open_state()
        part = store.open_part(store.start(STREAM, 1), 0)
        returned = threading.Event()

        def start() -> None:
            open_state().start(STREAM, 1)
            returned.set()

        driver = threading.Thread(target=start)
        with part.transaction() as transaction:
            driver.start()
            transaction.save({"a": Saved(b"1")})
            early = returned.wait(0.2)
        driver.join()
        assert not early
        assert dict(store.read(STREAM)) == {"a": Saved(b"1")}
        with pytest.raises(Fenced), part.transaction():
            pass
        part.close()
