"""Columns of events as DataFrames."""

from collections.abc import Mapping
from typing import Any

# Streams and batches have the same columns, because Spark asks for the schema of both alike. Streams leave the last
# columns empty.
COLUMNS = {
    "seq": "BIGINT",
    "event_id": "STRING",
    "event_type": "STRING",
    "queue": "STRING",
    "payload": "BINARY",
    "headers": "MAP<STRING, STRING>",
    "partition_key": "STRING",
    "ordering_key": "STRING",
    "priority": "INT",
    "created_at": "TIMESTAMP",
    "available_at": "TIMESTAMP",
    "attempts": "INT",
    "deliveries": "INT",
    "max_attempts": "INT",
    "replays": "INT",
    "suspect": "INT",
    "last_error": "STRING",
    "state": "STRING",
    "lease": "STRING",
    "token": "STRING",
    "claimed_at": "TIMESTAMP",
    "claimed_by": "STRING",
    "lease_expires_at": "TIMESTAMP",
    "published_at": "TIMESTAMP",
    "settled_at": "TIMESTAMP",
}


def columns(*names: str) -> dict[str, str]:
    """Return the named columns with their Spark types, in the order of the names."""
    return {name: COLUMNS[name] for name in names}


def arrow_schema(columns: Mapping[str, str]) -> Any:
    """Return the Arrow schema of the columns. Spark requires a batch to match the declared schema exactly."""
    import pyarrow as pa

    kinds: dict[str, pa.DataType] = {
        "BIGINT": pa.int64(),
        "INT": pa.int32(),
        "STRING": pa.string(),
        "BINARY": pa.binary(),
        "TIMESTAMP": pa.timestamp("us", tz="UTC"),
        "MAP<STRING, STRING>": pa.map_(pa.string(), pa.string()),
    }
    return pa.schema([(name, kinds[kind]) for name, kind in columns.items()])
