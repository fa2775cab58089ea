"""Conformance tests for state stores: states that are read and written as lines of JSON."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from penstock.streams.arrow_json import values
from penstock.streams.state.api import PartTransaction, Saved, StateColumns, StatePartition
from penstock.testing.states.scenario import StateScenario

if TYPE_CHECKING:
    from pyarrow import StringArray

MANY = 2_500


def column(keys: Iterable[str]) -> "StringArray":
    import pyarrow as pa

    return pa.array(sorted(keys), pa.string())


def as_lines(states: Mapping[str, bytes]) -> StateColumns:
    import pyarrow as pa

    return StateColumns(column(states), pa.array([states[key] for key in sorted(states)], pa.binary()))


def lines_in(transaction: PartTransaction, keys: Iterable[str], now: float) -> dict[str, bytes]:
    """Return the states by key, without keys that have no state."""
    wanted = column(keys)
    lines = transaction.load_json(wanted, now).split(b"\n") if len(wanted) else []
    return {key: line for key, line in zip(values(wanted), lines, strict=True) if line != b"{}"}


class SavingLines(StateScenario):
    def test_load_json_omits_expired_states(self, part: StatePartition) -> None:
        known = {f"key-{number}": Saved(b'{"n":%d}' % number, (None, 1.0, 3.0)[number % 3]) for number in range(MANY)}
        own = {"\x01of the stream": Saved(b"no line\nof one")}
        with part.transaction() as transaction:
            transaction.save(known | own)
        for step in (1, 2, 100, MANY):
            wanted = {f"key-{number}" for number in range(0, MANY, step)}
            with part.transaction() as transaction:
                found = lines_in(transaction, [*wanted, "unknown"], 2.0)
            assert found == {key: known[key].data for key in wanted if not known[key].expired(2.0)}

    def test_saved_json_lines_are_kept_byte_for_byte(self, part: StatePartition) -> None:
        """Lines are stored byte for byte, including JSON that a column type such as jsonb would reject or change."""
        plain = [
            b'{"a":1,"b":[1.50,-0,1e5,12345678901234567890123],"c":{"":null}}',
            '{"é":"水 \\u00e9\\n\\" \\\\","e":[],"f":{},"t":true}'.encode(),
            b'{"a":1,"a":2}',
        ]
        deep = b'{"a":' + b"[" * 3_000 + b"]" * 3_000 + b"}"
        half = '{"a":"\ud83d"}'.encode(errors="surrogatepass")
        for lines in (plain, [*plain, deep], [*plain, half]):
            keys = ["b", 'é" 水\\', "\x02", "a"][: len(lines)]
            with part.transaction() as transaction:
                transaction.save({"b": Saved(b"{}", 7.0), "other": Saved(b"{}")})
                transaction.save_columns(as_lines(dict(zip(keys, lines, strict=True))), 9.0)
            with part.transaction() as transaction:
                found = transaction.load([*keys, "other"])
            assert found == {
                **{key: Saved(line, 9.0) for key, line in zip(keys, lines, strict=True)},
                "other": Saved(b"{}"),
            }

    def test_json_lines_are_loaded_for_all_kinds_of_keys(self, part: StatePartition) -> None:
        keys = ["a", "é 水", "\x01a", "\x02", '"\\', "b", "\U0001f600", "\uffff", "b\nc", "'", "B", "10", "9"]
        lines = {key: b'{"n":%d}' % number for number, key in enumerate(keys)}
        with part.transaction() as transaction:
            assert lines_in(transaction, keys, 1.0) == {}
            assert lines_in(transaction, [], 1.0) == {}
            transaction.save({key: Saved(line) for key, line in lines.items()})
            assert lines_in(transaction, keys, 1.0) == lines
        with part.transaction() as transaction:
            assert lines_in(transaction, keys, 1.0) == lines
            changed = {key: b'{"m":%d}' % number for number, key in enumerate(keys)}
            transaction.save_columns(as_lines(changed), None)
        with part.transaction() as transaction:
            assert lines_in(transaction, keys, 1.0) == changed
            assert transaction.load(keys) == {key: Saved(line) for key, line in changed.items()}

    def test_json_lines_can_change_again_in_same_transaction(self, part: StatePartition) -> None:
        keys = ["a", "b\nc", "d"]
        with part.transaction() as transaction:
            transaction.save_columns(as_lines({key: b'{"n":%d}' % n for n, key in enumerate(keys, 1)}), None)
            assert transaction.load(keys) == {key: Saved(b'{"n":%d}' % n) for n, key in enumerate(keys, 1)}
            transaction.save_columns(as_lines({"b\nc": b'{"n":4}', "d": b'{"n":5}'}), 7.0)
            assert lines_in(transaction, keys, 1.0)["d"] == b'{"n":5}'
            assert lines_in(transaction, keys, 7.0) == {"a": b'{"n":1}'}
            transaction.save_columns(as_lines({"d": b'{"n":6}'}), None)
            transaction.save({"a": None})
        with part.transaction() as transaction:
            assert transaction.load(keys) == {"b\nc": Saved(b'{"n":4}', 7.0), "d": Saved(b'{"n":6}')}
            transaction.save_columns(as_lines({"b\nc": b'{"n":8}', "e": b'{"n":9}'}), 9.0)
        with part.transaction() as transaction:
            assert transaction.load(["b\nc", "e"]) == {"b\nc": Saved(b'{"n":8}', 9.0), "e": Saved(b'{"n":9}', 9.0)}
