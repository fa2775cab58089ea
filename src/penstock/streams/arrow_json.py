"""Conversion between JSON objects, one per row, and the columns of an Arrow table."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.config.extras import needs_extra
from penstock.model.errors import UsageError

if TYPE_CHECKING:
    from pyarrow import BinaryArray, DataType, Table

BLOCK_BYTES = 1 << 26
EMPTY = b"{}"
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


def arrow() -> tuple[Any, Any]:
    """Return the modules `pyarrow` and `pyarrow.compute`, typed as `Any`: their own type hints are incomplete."""
    import pyarrow
    import pyarrow.compute

    return pyarrow, pyarrow.compute


def check_fields(fields: Mapping[str, str]) -> None:
    """Raise `UsageError` for a type that Arrow does not know."""
    with needs_extra("fields=", "spark"):
        import pyarrow  # noqa: F401
    for name, kind in fields.items():
        _type(name, kind)


def from_json(objects: Sequence[bytes], fields: Mapping[str, str]) -> "Table":
    """Return the columns named in `fields`, with their types. A value is null if the object does not have the name."""
    if not all(map(bytes.strip, objects)):
        raise ValueError("payload must be a JSON object, got an empty payload")
    lines = b"\n".join(objects)
    if lines.count(b"\n") >= len(objects):  # some objects contain line breaks
        lines = b"\n".join(one.replace(b"\n", b" ") for one in objects)
    return from_lines(lines, len(objects), fields)


def from_lines(lines: bytes, count: int, fields: Mapping[str, str]) -> "Table":
    """Return the columns named in `fields` of `count` JSON objects, one object per line."""
    import pyarrow as pa
    from pyarrow import json as arrow_json

    schema = pa.schema([(name, _type(name, kind)) for name, kind in fields.items()])
    if not count:
        return schema.empty_table()
    source: Any = pa.BufferReader(lines)
    parsed = arrow_json.read_json(
        source,
        read_options=arrow_json.ReadOptions(use_threads=False, block_size=max(BLOCK_BYTES, len(lines) + 1)),
        parse_options=arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )
    if parsed.num_rows != count:
        raise ValueError("payload must be one JSON object, got several")
    return parsed


def to_json(table: "Table") -> "BinaryArray":
    """Return one JSON object per row, on one line. Names with null values are left out."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not table.num_columns:
        return pa.array([EMPTY] * table.num_rows, pa.binary())
    if any(column.null_count for column in table.columns):
        return pa.array([_object(row) for row in table.to_pylist()], pa.binary())
    pieces: list[Any] = []
    for place, (name, column) in enumerate(zip(table.column_names, table.columns, strict=True)):
        pieces.append(f"{',' if place else '{'}{_encode(name)}:")
        plain = pa.types.is_integer(column.type) or pa.types.is_boolean(column.type)
        pieces.append(column.cast(pa.string()) if plain else pa.array(map(_value, column.to_pylist()), pa.string()))
    joined = pc.binary_join_element_wise(*pieces, "}", "")
    objects: BinaryArray = whole(joined).cast(pa.binary())
    return objects


def values(column: Any) -> list[Any]:
    """Return the values of a column as a list, typed without the None of Arrow's type hints."""
    found: list[Any] = column.to_pylist()
    return found


def whole(column: Any) -> Any:
    """Return a chunked column as one array."""
    import pyarrow as pa

    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _object(row: Mapping[str, Any]) -> bytes:
    return _value({name: value for name, value in row.items() if value is not None}).encode(errors="surrogatepass")


def _value(value: Any) -> str:
    try:
        return _encode(value)
    except (TypeError, ValueError) as error:
        raise UsageError(f"cannot encode state as JSON: {error}") from error


def _type(name: str, kind: str) -> "DataType":
    import pyarrow as pa

    named: Any = pa.type_for_alias
    try:
        found: DataType = named(kind)
    except ValueError:
        raise UsageError(
            f"unknown type {kind!r} for field {name!r}; use an Arrow type such as int64 or string"
        ) from None
    return found
