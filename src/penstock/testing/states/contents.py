"""Conformance tests for state stores: inbox, states, offsets and emitted events of a state partition."""

from datetime import UTC, datetime
from typing import NoReturn
from uuid import UUID

import pytest

from penstock.model.errors import InvalidEvent
from penstock.model.event import Event, EventId
from penstock.streams.state.api import Arrival, Saved, StatePartition
from penstock.testing.states.scenario import ARRIVALS, StateScenario, save

MANY = 2_500


def event(number: int) -> Event:
    return Event(event_type="sum", payload=b"%d" % number, event_id=EventId(UUID(int=number)))


def emitted(part: StatePartition) -> list[int]:
    return [int(one.payload) for outgoing in part.outgoing() for one in outgoing.events]


class Inbox(StateScenario):
    def test_inbox_key_is_fresh_only_once(self, part: StatePartition) -> None:
        with part.transaction() as transaction:
            assert transaction.fresh(ARRIVALS[:1]) == set(ARRIVALS[:1])
            assert transaction.fresh(ARRIVALS[:2]) == {ARRIVALS[1]}
            assert transaction.fresh([]) == set()
        with part.transaction() as transaction:
            assert transaction.fresh([*ARRIVALS, *ARRIVALS]) == set(ARRIVALS[2:])
        with part.transaction() as transaction:
            assert transaction.fresh(ARRIVALS) == set()

    def test_replayed_event_is_new_arrival(self, part: StatePartition) -> None:
        with part.transaction() as transaction:
            transaction.fresh([Arrival("a", 1)])
        assert self.entered(part, [Arrival("a"), Arrival("a", 1), Arrival("a", 2)]) == {Arrival("a", 1)}

    def test_inbox_compares_ids_for_equality_only(self, part: StatePartition) -> None:
        """An older id that arrives after newer ones is fresh, regardless of sort order."""
        for wave in (["10-0"], ["9-0", "100-0"], ["2-0", "1-0", "10"]):
            with part.transaction() as transaction:
                assert {one.event_id for one in transaction.fresh([Arrival(name) for name in wave])} == {*wave}
        assert self.entered(part, [Arrival("10-0"), Arrival("9-0"), Arrival("9")]) == {Arrival("10-0"), Arrival("9-0")}

    def test_trimmed_inbox_keys_are_fresh_again(self, part: StatePartition) -> None:
        with part.transaction() as transaction:
            transaction.fresh(ARRIVALS)
        assert self.entered(part, ARRIVALS) == set(ARRIVALS)
        part.trim([ARRIVALS[0], Arrival("unknown")])
        assert self.entered(part, ARRIVALS) == set(ARRIVALS[1:])
        part.trim([])
        with part.transaction() as transaction:
            assert transaction.fresh(ARRIVALS) == {ARRIVALS[0]}

    def test_refused_arrivals_are_fresh_again(self, part: StatePartition) -> None:
        one, other, replayed = Arrival("1"), Arrival("2"), Arrival("1", 1)
        with part.transaction() as tx:
            assert tx.fresh([one, other, replayed]) == {one, other, replayed}
            tx.refuse([one, replayed])
        assert self.entered(part, [one, other, replayed]) == {other}
        with part.transaction() as tx:
            assert tx.fresh([one, other, replayed]) == {one, replayed}

    def test_transaction_holds_thousands_of_keys(self, part: StatePartition) -> None:
        arrivals = [Arrival(f"{number}-0", number % 3) for number in range(MANY)]
        keys = {f"key-{number}": Saved(b"%d" % number) for number in range(MANY)}
        with part.transaction() as transaction:
            assert transaction.fresh(arrivals[::2]) == set(arrivals[::2])
            transaction.save(keys)
        with part.transaction() as transaction:
            assert transaction.fresh(arrivals) == set(arrivals[1::2])
            assert transaction.load([*keys, "unknown"]) == keys
        assert self.entered(part, arrivals) == set(arrivals)
        part.trim(arrivals[100:])
        assert self.entered(part, arrivals) == set(arrivals[:100])


class SavingState(StateScenario):
    def test_load_returns_only_requested_states(self, part: StatePartition) -> None:
        """Test many combinations of requested and stored keys: stores have several ways to find states."""
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

    def test_offsets_never_decrease(self, part: StatePartition) -> None:
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

    def test_state_is_loaded_as_saved(self, part: StatePartition) -> None:
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

    def test_emitted_events_go_out_once_and_in_order(self, part: StatePartition) -> None:
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

    def test_emitted_event_keeps_all_fields(self, part: StatePartition) -> None:
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

    def test_failed_transaction_changes_nothing(self, part: StatePartition) -> None:
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
        assert self.entered(part, ARRIVALS) == set()
        assert list(part.outgoing()) == []
        with part.transaction() as transaction:
            assert transaction.load(["a", "b"]) == {"a": Saved(b"1")}
            assert transaction.reached(["orders/0"]) == {}
