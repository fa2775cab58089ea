"""Columns of events as DataFrames."""

from collections.abc import Mapping
from typing import Any

# The same for a stream and a batch, which Spark doesn't tell apart when it asks; a stream leaves the last ones empty.
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
    """Return some of the columns with their types, in this order."""
    return {name: COLUMNS[name] for name in names}


def arrow_schema(columns: Mapping[str, str]) -> Any:
    """Spark takes a batch only if it matches the declared schema exactly."""
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
