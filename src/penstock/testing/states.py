"""The conformance suite for state stores: what every one has to get right, as tests to inherit.

    class TestMyState(StateStoreConformance):
        @pytest.fixture
        def open_state(self): ...   # a function that opens the test's own, fresh place; each call a store of its own

The crashes start processes that open the store by its URL.
"""

import threading
import time
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from typing import NoReturn
from uuid import UUID

import pytest

from penstock.model.errors import InvalidEvent, UsageError
from penstock.model.event import Event, EventId
from penstock.streams.state.api import Arrival, Fenced, Saved, StatePartition, StateStore
from penstock.testing.state_crashes import STREAM, Crashing, OpenState, Racing, StateScenario
from penstock.testing.state_lines import Lining
from penstock.testing.state_timers import Timing

ARRIVALS = [Arrival("9-0"), Arrival("10-0"), Arrival("é 水"), Arrival("9-0", 1)]
MANY = 2_500


def event(number: int) -> Event:
    return Event(event_type="sum", payload=b"%d" % number, event_id=EventId(UUID(int=number)))


def emitted(part: StatePartition) -> list[int]:
    return [int(one.payload) for outgoing in part.outgoing() for one in outgoing.events]


def save(part: StatePartition, key: str, data: bytes, expires_at: float | None = None) -> None:
    with part.transaction() as transaction:
        transaction.save({key: Saved(data, expires_at)})


class Inbox(StateScenario):
    def test_what_was_entered_is_no_longer_fresh(self, part: StatePartition) -> None:
        with part.transaction() as transaction:
            assert transaction.fresh(ARRIVALS[:1]) == set(ARRIVALS[:1])
            assert transaction.fresh(ARRIVALS[:2]) == {ARRIVALS[1]}
            assert transaction.fresh([]) == set()
        with part.transaction() as transaction:
            assert transaction.fresh([*ARRIVALS, *ARRIVALS]) == set(ARRIVALS[2:])
        with part.transaction() as transaction:
            assert transaction.fresh(ARRIVALS) == set()

    def test_a_replay_is_another_arrival(self, part: StatePartition) -> None:
        with part.transaction() as transaction:
            transaction.fresh([Arrival("a", 1)])
        assert part.holds([Arrival("a"), Arrival("a", 1), Arrival("a", 2)]) == {Arrival("a", 1)}

    def test_ids_are_compared_for_equality_only(self, part: StatePartition) -> None:
        """An older entry that is taken over after newer ones is fresh, however its id sorts."""
        for wave in (["10-0"], ["9-0", "100-0"], ["2-0", "1-0", "10"]):
            with part.transaction() as transaction:
                assert {one.event_id for one in transaction.fresh([Arrival(name) for name in wave])} == {*wave}
        assert part.holds([Arrival("10-0"), Arrival("9-0"), Arrival("9")]) == {Arrival("10-0"), Arrival("9-0")}

    def test_what_is_trimmed_is_held_no_more(self, part: StatePartition) -> None:
        with part.transaction() as transaction:
            transaction.fresh(ARRIVALS)
        assert part.holds(ARRIVALS) == set(ARRIVALS)
        part.trim([ARRIVALS[0], Arrival("unknown")])
        assert part.holds(ARRIVALS) == set(ARRIVALS[1:])
        part.trim([])
        with part.transaction() as transaction:
            assert transaction.fresh(ARRIVALS) == {ARRIVALS[0]}

    def test_what_is_refused_comes_again(self, part: StatePartition) -> None:
        one, other, replayed = Arrival("1"), Arrival("2"), Arrival("1", 1)
        with part.transaction() as tx:
            assert tx.fresh([one, other, replayed]) == {one, other, replayed}
            tx.refuse([one, replayed])
        assert part.holds([one, other, replayed]) == {other}
        with part.transaction() as tx:
            assert tx.fresh([one, other, replayed]) == {one, replayed}

    def test_many_at_once(self, part: StatePartition) -> None:
        arrivals = [Arrival(f"{number}-0", number % 3) for number in range(MANY)]
        keys = {f"key-{number}": Saved(b"%d" % number) for number in range(MANY)}
        with part.transaction() as transaction:
            assert transaction.fresh(arrivals[::2]) == set(arrivals[::2])
            transaction.save(keys)
        with part.transaction() as transaction:
            assert transaction.fresh(arrivals) == set(arrivals[1::2])
            assert transaction.load([*keys, "unknown"]) == keys
        assert part.holds(arrivals) == set(arrivals)
        part.trim(arrivals[100:])
        assert part.holds(arrivals) == set(arrivals[:100])


class SavedStates(StateScenario):
    def test_of_many_states_those_come_that_are_asked_for(self, part: StatePartition) -> None:
        """However many are asked for, of however many there are: stores have several ways to find them."""
        known: dict[str, Saved] = {}
        for size in (1, 49, 50, 51, MANY):
            changed = {f"key-{number}": Saved(b"%d" % number, (None, size / 4)[number % 2]) for number in range(size)}
            gone = [f"key-{number}" for number in range(0, size, 7)]
            with part.transaction() as transaction:
                transaction.save({**changed, **dict.fromkeys(gone)})
            known = {key: saved for key, saved in {**known, **changed}.items() if key not in gone}
            for step in (1, 2, 3, 100):
                wanted = [f"key-{number}" for number in range(0, MANY, step)]
                with part.transaction() as transaction:
                    found = transaction.load([*wanted, "unknown"])
                assert found == {key: known[key] for key in wanted if key in known}

    def test_offsets_never_go_back(self, part: StatePartition) -> None:
        with part.transaction() as transaction:
            assert transaction.reached(["orders/0"]) == {}
            transaction.advance({"orders/0": 10, "orders/1": 3, "other/0": 0})
            assert transaction.reached(["orders/0", "orders/2"]) == {"orders/0": 10}
            transaction.advance({"orders/0": 7})
        with part.transaction() as transaction:
            transaction.advance({"orders/0": 9, "orders/1": 2**62})
            assert transaction.reached(["orders/0", "orders/1", "other/0"]) == {
                "orders/0": 10,
                "orders/1": 2**62,
                "other/0": 0,
            }

    def test_state_comes_back_as_it_was_saved(self, part: StatePartition) -> None:
        saved = {"a": Saved(b""), "é 水": Saved(bytes(range(256)), 1.5), "A": Saved(b"x" * 100_000, 4e9 + 0.25)}
        with part.transaction() as transaction:
            assert transaction.load(["a"]) == {}
            transaction.save(saved)
            assert transaction.load([*saved, "b"]) == saved
        with part.transaction() as transaction:
            assert transaction.load(["é 水", "A", "a"]) == saved
            assert transaction.load([]) == {}
            transaction.save({"a": Saved(b"new", 7.0), "A": None, "never": None})
            assert transaction.load(["a", "A"]) == {"a": Saved(b"new", 7.0)}
        with part.transaction() as transaction:
            assert transaction.load(["a", "A", "never"]) == {"a": Saved(b"new", 7.0)}
            transaction.save({"a": None})
            transaction.save({"a": Saved(b"again")})
        with part.transaction() as transaction:
            assert transaction.load(["a"]) == {"a": Saved(b"again")}

    def test_what_is_emitted_goes_out_in_order_and_once(self, part: StatePartition) -> None:
        assert list(part.outgoing()) == []
        with part.transaction() as transaction:
            transaction.emit([event(1), event(2)])
            transaction.emit([])
            transaction.emit([event(3)])
        with part.transaction():
            pass
        with part.transaction() as transaction:
            transaction.emit([event(number) for number in range(4, 20)])
        first, second = part.outgoing()
        assert [one.payload for one in first.events] == [b"1", b"2", b"3"]
        assert first.batch < second.batch
        part.sent(first.batch)
        assert emitted(part) == list(range(4, 20))
        part.sent(second.batch)
        part.sent(first.batch)
        assert emitted(part) == []
        with part.transaction() as transaction:
            transaction.emit([event(20)])
        (third,) = part.outgoing()
        assert third.batch > second.batch

    def test_an_event_goes_out_with_all_that_it_has(self, part: StatePartition) -> None:
        plain = event(1)
        full = Event(
            event_type="é",
            payload=b"\x00\n\xff",
            queue="q",
            headers={"a": "水\n"},
            partition_key="p",
            ordering_key="o",
            priority=-3,
            available_at=datetime(2030, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
            max_attempts=4,
            dedupe_key="d",
            dedupe_seconds=9.5,
            event_id=EventId(UUID(int=2)),
        )
        late = Event(event_type="t", delay_seconds=2.5, event_id=EventId(UUID(int=3)))
        with part.transaction() as transaction:
            transaction.emit([plain, full, late])
            with pytest.raises(InvalidEvent, match="id"):
                transaction.emit([Event(event_type="t")])
        assert [list(outgoing.events) for outgoing in part.outgoing()] == [[plain, full, late]]

    def test_a_block_that_raises_leaves_nothing(self, part: StatePartition) -> None:
        save(part, "a", b"1")

        def fail() -> NoReturn:
            with part.transaction() as transaction:
                transaction.fresh(ARRIVALS)
                transaction.save({"a": Saved(b"2"), "b": Saved(b"2")})
                transaction.advance({"orders/0": 1})
                transaction.emit([event(1)])
                raise KeyError("the handler's own")

        with pytest.raises(KeyError):
            fail()
        assert part.holds(ARRIVALS) == set()
        assert list(part.outgoing()) == []
        with part.transaction() as transaction:
            assert transaction.load(["a", "b"]) == {"a": Saved(b"1")}
            assert transaction.reached(["orders/0"]) == {}


class PartFencing(StateScenario):
    def test_each_driver_takes_the_next_epoch_and_parts_stay(self, open_state: OpenState) -> None:
        started = [open_state().start(STREAM, parts) for parts in (3, 5, 1)]
        assert [(one.epoch, one.parts) for one in started] == [(1, 3), (2, 3), (3, 3)]
        assert open_state().start("other", 2).epoch == 1
        assert [(one.stream, one.epoch, one.parts) for one in open_state().streams()] == [
            (STREAM, 3, 3),
            ("other", 1, 2),
        ]

    @pytest.mark.parametrize("parts", [0, -1])
    def test_a_stream_needs_a_part(self, store: StateStore, parts: int) -> None:
        with pytest.raises(UsageError, match="part"):
            store.start(STREAM, parts)

    @pytest.mark.parametrize("name", ["../up", "..", "a/b", "A b%2F", "水"])
    def test_a_stream_may_have_any_name(self, store: StateStore, name: str) -> None:
        started = [store.start(one, 1) for one in (name, STREAM)]
        parts = [store.open_part(one, 0) for one in started]
        save(parts[0], "a", b"1")
        assert list(store.read(name)) == [("a", Saved(b"1"))]
        assert list(store.read(STREAM)) == []
        assert {one.stream for one in store.streams()} == {name, STREAM}
        for part in parts:
            part.close()

    def test_the_older_of_two_drivers_is_fenced(self, open_state: OpenState) -> None:
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
        assert taken.holds(ARRIVALS) == set(ARRIVALS)
        save(taken, "a", b"newer")
        assert dict(second.read(STREAM)) == {"a": Saved(b"newer")}
        taken.close()
        part.close()

    def test_the_older_of_two_tasks_is_fenced(self, open_state: OpenState) -> None:
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

    def test_a_task_of_an_earlier_job_comes_too_late(self, open_state: OpenState) -> None:
        store = open_state()
        started = store.start(STREAM, 2)
        for job in (5, 5, 6):
            newer = store.open_part(replace(started, job=job), 1)
            save(newer, "a", b"%d" % job)
            newer.close()
        with pytest.raises(Fenced, match="too late"):
            open_state().open_part(replace(started, job=5), 1)
        open_state().open_part(replace(started, job=5), 0).close()
        restarted = store.start(STREAM, 2)
        part = store.open_part(restarted, 1)  # the jobs of another driver are counted anew
        save(part, "b", b"0")
        part.close()
        assert dict(store.read(STREAM)) == {"a": Saved(b"6"), "b": Saved(b"0")}

    def test_tasks_of_several_parts_work_side_by_side(self, store: StateStore) -> None:
        parts = [store.open_part(started, number) for started in [store.start(STREAM, 2)] for number in range(2)]
        with parts[0].transaction() as one, parts[1].transaction() as other:
            assert (one.fresh(ARRIVALS), other.fresh(ARRIVALS)) == (set(ARRIVALS), set(ARRIVALS))
            one.save({"a": Saved(b"0")})
            other.save({"b": Saved(b"1")})
        for number, part in enumerate(parts):
            with part.transaction() as transaction:
                assert transaction.load(["a", "b"]) == {"ab"[number]: Saved(b"%d" % number)}
            part.close()

    def test_a_driver_that_starts_waits_for_what_is_being_committed(self, open_state: OpenState) -> None:
        """Or it is fenced out: in no case does anything of an older epoch come after the start has returned."""
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


class Outside(StateScenario):
    def test_state_is_read_by_key_while_a_transaction_is_open(self, open_state: OpenState, store: StateStore) -> None:
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

    def test_state_is_read_part_by_part(self, open_state: OpenState, store: StateStore) -> None:
        started = store.start(STREAM, 3)
        for number in range(2):
            part = store.open_part(started, number)
            with part.transaction() as transaction:
                transaction.save({f"{name}-{number}": Saved(b"%d" % number) for name in "cab"})
            part.close()
        looking = open_state()
        assert [key for key, _ in looking.read(STREAM, part=1)] == ["a-1", "b-1", "c-1"]
        assert list(looking.read(STREAM, ["c-0", "a-0", "b-1"], part=0)) == [("a-0", Saved(b"0")), ("c-0", Saved(b"0"))]
        assert list(looking.read(STREAM, [], part=0)) == []
        assert list(looking.read(STREAM, part=2)) == []
        assert [key for key, _ in looking.read(STREAM)] == ["a-0", "a-1", "b-0", "b-1", "c-0", "c-1"]
        for number in (-1, 3):
            with pytest.raises(UsageError, match=f"no part {number}"):
                list(looking.read(STREAM, part=number))

    def test_a_stream_that_is_held_goes_on_as_any_other(self, open_state: OpenState, store: StateStore) -> None:
        """By tasks, by another driver, and when it is let go of."""
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

    def test_an_unknown_stream_is_an_error(self, store: StateStore) -> None:
        assert list(store.streams()) == []
        with pytest.raises(UsageError, match="'orders'"):
            list(store.read(STREAM))
        with pytest.raises(UsageError, match="'orders'"):
            store.forget(STREAM, older_than_seconds=1)

    def test_forget_drops_what_is_old_and_what_has_expired(self, store: StateStore) -> None:
        part = store.open_part(store.start(STREAM, 2), 1)
        now = time.time()
        with part.transaction() as transaction:
            transaction.fresh(ARRIVALS)
            transaction.save({"old": Saved(b"", now - 60), "later": Saved(b"", now + 3600), "never": Saved(b"")})
        assert store.forget(STREAM, older_than_seconds=3600) == 1
        assert part.holds(ARRIVALS) == set(ARRIVALS)
        assert [key for key, _ in store.read(STREAM)] == ["later", "never"]
        assert store.forget(STREAM, older_than_seconds=0) == len(ARRIVALS)
        assert part.holds(ARRIVALS) == set()
        save(part, "after", b"still this task's")
        part.close()


class StateStoreConformance(Inbox, SavedStates, Lining, Timing, PartFencing, Outside, Crashing, Racing):
    """Everything that a stream relies on."""
