"""Conformance tests for state stores: reading and cleaning up state from outside of a stream."""

import time
from contextlib import closing

import pytest

from penstock.model.errors import UsageError
from penstock.streams.state.api import Saved, StateStore
from penstock.testing.states.scenario import ARRIVALS, STREAM, OpenState, StateScenario, save


class ReadingState(StateScenario):
    def test_read_by_key_ignores_open_transaction(self, open_state: OpenState, store: StateStore) -> None:
        started = store.start(STREAM, 2)
        parts = [store.open_part(started, number) for number in range(2)]
        save(parts[0], "b", b"1", 5.0)
        save(parts[1], "a", b"2")
        save(parts[1], "Z", b"3")
        with parts[0].transaction() as transaction:
            transaction.save({"b": None, "c": Saved(b"4")})
            expected = [("Z", Saved(b"3")), ("a", Saved(b"2")), ("b", Saved(b"1", 5.0))]
            assert list(open_state().read(STREAM)) == expected
            assert list(open_state().read(STREAM, ["b", "c", "Z"])) == [expected[0], expected[2]]
        assert [key for key, _ in open_state().read(STREAM)] == ["Z", "a", "c"]
        for part in parts:
            part.close()

    def test_read_can_select_one_state_partition(self, open_state: OpenState, store: StateStore) -> None:
        started = store.start(STREAM, 3)
        for number in range(2):
            part = store.open_part(started, number)
            with part.transaction() as transaction:
                transaction.save({f"{name}-{number}": Saved(b"%d" % number) for name in "cab"})
            part.close()
        reader = open_state()
        assert [key for key, _ in reader.read(STREAM, part=1)] == ["a-1", "b-1", "c-1"]
        assert list(reader.read(STREAM, ["c-0", "a-0", "b-1"], part=0)) == [("a-0", Saved(b"0")), ("c-0", Saved(b"0"))]
        assert list(reader.read(STREAM, [], part=0)) == []
        assert list(reader.read(STREAM, part=2)) == []
        assert [key for key, _ in reader.read(STREAM)] == ["a-0", "a-1", "b-0", "b-1", "c-0", "c-1"]
        for number in (-1, 3):
            with pytest.raises(UsageError, match=f"state partition {number} of stream"):
                list(reader.read(STREAM, part=number))

    def test_held_stream_accepts_tasks_and_drivers(self, open_state: OpenState, store: StateStore) -> None:
        """Tasks and another driver can use a stream while it is held, and after it is released."""
        first = store.start("totals", 1)
        with store.held("totals"):
            for _ in range(3):
                with closing(open_state().open_part(first, 0)) as part, part.transaction() as transaction:
                    counted = transaction.load(["a"]).get("a", Saved(b""))
                    transaction.save({"a": Saved(counted.data + b"x")})
            second = open_state().start("totals", 1)
            with closing(open_state().open_part(second, 0)) as part, part.transaction() as transaction:
                assert transaction.load(["a"]) == {"a": Saved(b"xxx")}
        assert dict(store.read("totals")) == {"a": Saved(b"xxx")}

    def test_unknown_stream_is_error(self, store: StateStore) -> None:
        assert list(store.streams()) == []
        with pytest.raises(UsageError, match="'orders'"):
            list(store.read(STREAM))
        with pytest.raises(UsageError, match="'orders'"):
            store.forget(STREAM, older_than_seconds=1)

    def test_forget_drops_old_inbox_keys_and_expired_states(self, store: StateStore) -> None:
        part = store.open_part(store.start(STREAM, 2), 1)
        now = time.time()
        with part.transaction() as transaction:
            transaction.fresh(ARRIVALS)
            transaction.save({"old": Saved(b"", now - 60), "later": Saved(b"", now + 3600), "never": Saved(b"")})
        assert store.forget(STREAM, older_than_seconds=3600) == 1
        assert self.entered(part, ARRIVALS) == set(ARRIVALS)
        assert [key for key, _ in store.read(STREAM)] == ["later", "never"]
        assert store.forget(STREAM, older_than_seconds=0) == len(ARRIVALS)
        assert self.entered(part, ARRIVALS) == set()
        save(part, "after", b"still this task's")
        part.close()
