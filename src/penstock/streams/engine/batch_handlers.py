"""Handlers of many events at once. A handler gets an Arrow table or a pandas DataFrame, and the states of all keys.

@app.stream("orders", batch="arrow", fields={"amount": "int64"})
def total(events, ctx):
    sums = events.group_by("key").aggregate([("amount", "sum")])
    for key, amount in zip(sums["key"].to_pylist(), sums["amount_sum"].to_pylist()):
        state = ctx.states[key]
        state["sum"] = state.get("sum", 0) + amount

With many keys, use states as columns: `ctx.states.table(keys, {"sum": "int64"})` and `ctx.states.put(table)`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

from penstock.config.extras import needs_extra
from penstock.model.errors import UsageError
from penstock.streams.arrow_json import from_json, to_json, values
from penstock.streams.context import Emitter, KeyState, encode_values
from penstock.streams.event import StreamEvent, decode_json

if TYPE_CHECKING:
    from pyarrow import BinaryArray, Table


class BatchKind(StrEnum):
    """Argument type of a batch handler."""

    ARROW = "arrow"
    PANDAS = "pandas"


class States(Mapping[str, KeyState]):
    """States of a batch's keys. Every key has a state, which may be empty."""

    def __init__(self, find: Callable[[str], KeyState], keys: Iterable[str]) -> None:
        self._find = find
        self._given = keys

    @cached_property
    def _keys(self) -> Mapping[str, None]:
        return dict.fromkeys(self._given)

    def __getitem__(self, key: str) -> KeyState:
        if key not in self._keys:
            raise KeyError(f"key {key!r} does not occur in this batch")
        return self._find(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def table(self, keys: Any, fields: Mapping[str, str]) -> "Table":
        """Return the states of these keys as columns, in the order of the keys. `fields` are the names with their Arrow
        types. A value is null if the state does not have the name."""
        return from_json(self._written(self._of_batch(keys)), fields)

    def put(self, states: Any) -> None:
        """Replace the state of each key by a row of an Arrow or pandas table. The table has a column `key` and one
        column for each name; null values are left out."""
        import pyarrow as pa

        table = states if isinstance(states, pa.Table) else pa.Table.from_pandas(states, preserve_index=False)
        if "key" not in table.column_names:
            raise UsageError("missing column key in the table of states")
        self._write(table.column("key"), to_json(table.drop_columns(["key"])))

    def _of_batch(self, keys: Any) -> list[str]:
        named: list[str] = keys.to_pylist() if hasattr(keys, "to_pylist") else list(keys)
        if not all(map(self._keys.__contains__, named)):
            unknown = next(key for key in named if key not in self._keys)
            raise KeyError(f"key {unknown!r} does not occur in this batch")
        return named

    def _written(self, keys: Sequence[str]) -> list[bytes]:
        """Return the states as JSON objects."""
        return [encode_values(dict(self._find(key))) for key in keys]

    def _write(self, keys: Any, objects: "BinaryArray") -> None:
        for key, one in zip(self._of_batch(keys), values(objects), strict=True):
            self._find(key).become(decode_json(one))


class BatchContext(Emitter):
    """States of the keys, and a buffer for emitted events, for one call of a batch handler."""

    __slots__ = ("states",)

    def __init__(self, states: States) -> None:
        super().__init__()
        self.states = states


def in_kind(table: "Table", kind: BatchKind | None) -> Any:
    """Return a table as the argument type of the handler."""
    return table.to_pandas() if kind is BatchKind.PANDAS else table


def as_table(events: Sequence[StreamEvent], fields: Mapping[str, str]) -> "Table":
    """Return a table with one row per event. `fields` are columns from payloads, which must then be JSON objects."""
    with needs_extra("A batch handler", "spark"):
        import pyarrow as pa

    columns: dict[str, Any] = {
        "event_id": pa.array([event.event_id for event in events], pa.string()),
        "key": pa.array([event.key for event in events], pa.string()),
        "event_type": pa.array([event.event_type for event in events], pa.string()),
        "payload": pa.array([event.payload for event in events], pa.binary()),
        "headers": pa.array([list(event.headers.items()) for event in events], pa.map_(pa.string(), pa.string())),
        "created_at": pa.array([event.created_at for event in events], pa.timestamp("us", tz="UTC")),
        "attempts": pa.array([event.attempts for event in events], pa.int32()),
        "partition_key": pa.array([event.partition_key for event in events], pa.string()),
        "ordering_key": pa.array([event.ordering_key for event in events], pa.string()),
    }
    return with_fields(pa.table(columns), fields)


def with_fields(table: "Table", fields: Mapping[str, str]) -> "Table":
    """Append the columns that are taken from payloads."""
    if not fields:
        return table
    payloads: list[Any] = table.column("payload").to_pylist()
    parsed = from_json(payloads, fields)
    for name in fields:
        table = table.append_column(name, parsed.column(name))
    return table
