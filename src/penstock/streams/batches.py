"""Handlers that take many events at once: as an Arrow table or a pandas DataFrame, with the state of all their keys.

@app.stream("orders", batch="arrow", fields={"amount": "int64"})
def total(events, ctx):
    sums = events.group_by("key").aggregate([("amount", "sum")])
    for key, amount in zip(sums["key"].to_pylist(), sums["amount_sum"].to_pylist()):
        state = ctx.states[key]
        state["sum"] = state.get("sum", 0) + amount
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from io import BytesIO
from typing import TYPE_CHECKING, Any

from penstock.config import needs_extra
from penstock.errors import UsageError
from penstock.streams.context import Emitting, KeyState
from penstock.streams.event import StreamEvent

if TYPE_CHECKING:
    from pyarrow import DataType, Table

BLOCK_BYTES = 1 << 26


class BatchKind(StrEnum):
    """What a batch handler is given."""

    ARROW = "arrow"
    PANDAS = "pandas"

    @classmethod
    def parse(cls, text: str) -> "BatchKind":
        try:
            return cls(text)
        except ValueError:
            raise UsageError(f'batch is "arrow" or "pandas", not {text!r}') from None


class States(Mapping[str, KeyState]):
    """The states of a batch's keys. Every key has one, though it may be empty."""

    def __init__(self, find: Callable[[str], KeyState], keys: Sequence[str]) -> None:
        self._find = find
        self._keys = dict.fromkeys(keys)

    def __getitem__(self, key: str) -> KeyState:
        if key not in self._keys:
            raise KeyError(f"no event of this batch has the key {key!r}")
        return self._find(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


class BatchContext(Emitting):
    """What belongs to one call with many events."""

    __slots__ = ("states",)

    def __init__(self, states: States) -> None:
        super().__init__()
        self.states = states


def as_given(events: Sequence[StreamEvent], kind: BatchKind, fields: Mapping[str, str]) -> Any:
    """The events as their handler wants them, in order."""
    table = as_table(events, fields)
    return table if kind is BatchKind.ARROW else table.to_pandas()


def as_table(events: Sequence[StreamEvent], fields: Mapping[str, str]) -> "Table":
    """A row for each event; `fields` are columns taken from payloads that are JSON objects."""
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
    table = pa.table(columns)
    if not fields:
        return table
    parsed = _parsed([event.payload for event in events], fields)
    for name in fields:
        table = table.append_column(name, parsed.column(name))
    return table


def check_fields(fields: Mapping[str, str]) -> None:
    """Say at once which type Arrow doesn't know."""
    with needs_extra("fields=", "spark"):
        import pyarrow  # noqa: F401
    for name, kind in fields.items():
        _type(name, kind)


def _parsed(payloads: Sequence[bytes], fields: Mapping[str, str]) -> "Table":
    import pyarrow as pa
    from pyarrow import json

    if not all(map(bytes.strip, payloads)):
        raise ValueError("a payload is empty, and no JSON object")
    lines = b"\n".join(payload.replace(b"\n", b" ") for payload in payloads)
    schema = pa.schema([(name, _type(name, kind)) for name, kind in fields.items()])
    parsed = json.read_json(
        BytesIO(lines),
        read_options=json.ReadOptions(use_threads=False, block_size=max(BLOCK_BYTES, len(lines) + 1)),
        parse_options=json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )
    if parsed.num_rows != len(payloads):
        raise ValueError("a payload is more than one JSON object")
    return parsed


def _type(name: str, kind: str) -> "DataType":
    import pyarrow as pa

    named: Any = pa.type_for_alias
    try:
        found: DataType = named(kind)
    except ValueError:
        raise UsageError(f"fields: {name!r} can't be of type {kind!r}; int64, float64, string or bool can") from None
    return found
