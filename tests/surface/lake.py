"""Names in a lake: its columns, folders and files, and the notes of the relay. Spark isn't started."""

import json
import re
from collections.abc import Iterator
from unittest.mock import MagicMock, patch
from uuid import UUID

from penstock.model.lease import Lease, LeaseId, Token
from penstock.pipeline.lake import files as lake_folder
from penstock.pipeline.lake.files import LakeFolder, LakeNote
from penstock.pipeline.lake.layout import COLUMNS, folder_name

LEASE, TOKEN = UUID(int=1), UUID(int=2)
NAMES = {str(LEASE): "<lease>", str(TOKEN): "<token>", r"\d+-[0-9a-f]{32}": "<seconds>-<id>"}
TYPES = ("order.placed", "Order placed!", "__order", "ä", "a" * 201)
"""Event types that are valid as folder names, and types that are not."""


def lines() -> list[str]:
    """Return a line for each name."""
    note = LakeNote(Lease(LeaseId(LEASE), Token(TOKEN), "outbox", 60.0), [1], str(UUID(int=3)), ["a.parquet"])
    return sorted(
        {
            *(f"column {name} {kind}" for name, kind in COLUMNS.items()),
            *(f"folder of type {event_type[:20]}: {folder_name(event_type)}" for event_type in TYPES),
            *(f"note: {key}" for key in json.loads(note.to_json())),
            *(f"path {path}" for path in map(_general, _paths(note))),
        }
    )


def _paths(note: LakeNote) -> Iterator[str]:
    """Return the paths below the lake that a relay uses when it stages a batch, moves the files and writes the note."""
    spark = MagicMock()
    java = spark.sparkContext._jvm.org.apache.hadoop.fs.Path
    lake = LakeFolder(spark, "/lake")
    file_system = java.return_value.getFileSystem.return_value
    file_system.makeQualified.return_value.toString.return_value = "/lake"
    with patch.object(lake_folder, "shaped") as shaped:
        writer = shaped.return_value.sortWithinPartitions.return_value.write

        def written() -> str:
            values = {"lease": LEASE, "token": TOKEN, "day": "<day>", "event_type": "<type>"}
            folders = "/".join(f"{name}={values[name]}" for name in writer.partitionBy.call_args.args)
            return f"/lake/{java.call_args_list[1].args[1]}/{folders}/part-0.parquet"

        found = file_system.listFiles.return_value
        found.hasNext.side_effect = (True, False)
        found.next.return_value.getPath.return_value.toString.side_effect = written
        _, staged = lake.stage(MagicMock())
    for file in staged:
        lake.move(file)
    lake.put(note)
    return (call.args[1] for call in java.call_args_list[1:])


def _general(path: str) -> str:
    for pattern, name in NAMES.items():
        path = re.sub(pattern, name, path)
    return path
