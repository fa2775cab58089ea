"""Staged rows and other objects beside the document: written before a document names them, swept up once none does.

A part's rows are an object each time that some are staged, and all there is to know of it stands in its name:
`staged/<write>/<batch>/<place>.<part>/<start>.<count>.<time>`.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from penstock.store.base import Part
from penstock.store.objects import archive
from penstock.store.objects.bucket import DRAFTS, Bucket, Shelf
from penstock.store.objects.emitting import NewEvent
from penstock.store.objects.model import Model
from penstock.store.objects.values import OBJECT, Entry
from penstock.store.staging import STAGED_RETENTION_SECONDS

# Longer than the time between writing an object and the document that names it.
ORPHAN_AGE = timedelta(days=1)
SWEPT = ("archive", "payloads", DRAFTS)


@dataclass(frozen=True, slots=True)
class Rows:
    """Some staged rows, by what the name of their object says."""

    name: str
    batch_id: int
    place: int
    part_id: str
    start: int
    count: int
    staged_at: int


def stage(bucket: Bucket, part: Part, start: int, rows: Sequence[NewEvent], now: int) -> None:
    name = (
        f"{_folder(part.write_id)}/{part.batch_id}/{part.place}.{part.part_id.hex}/{start:012}.{len(rows)}.{now}.json"
    )
    bucket.write(name, json.dumps(rows, ensure_ascii=False, separators=(",", ":")).encode())


def staged(bucket: Bucket, write_id: UUID) -> Iterator[Rows]:
    """All that a write has staged."""
    return map(_rows, (found.name for found in bucket.names(_folder(write_id))))


def of_parts(bucket: Bucket, write_id: UUID, batch_id: int, parts: Mapping[UUID, int]) -> list[str]:
    """The objects of a batch's named parts, in the order of their rows."""
    wanted = {part.hex for part, count in parts.items() if count}
    rows = [one for one in staged(bucket, write_id) if one.batch_id == batch_id and one.part_id in wanted]
    return [one.name for one in sorted(rows, key=lambda one: (one.place, one.part_id, one.start))]


def drop_batch(bucket: Bucket, write_id: UUID, batch_id: int) -> None:
    """Of this batch, whatever attempt staged it, and of older ones."""
    bucket.delete([one.name for one in staged(bucket, write_id) if one.batch_id <= batch_id])


def drop(bucket: Bucket, write_id: UUID, parts: Collection[UUID] | None) -> int:
    wanted = None if parts is None else {part.hex for part in parts}
    gone = [one for one in staged(bucket, write_id) if wanted is None or one.part_id in wanted]
    bucket.delete([one.name for one in gone])
    return sum(one.count for one in gone)


def drop_old(bucket: Bucket, now: int) -> None:
    """What waited for longer than any write takes."""
    before = now - int(STAGED_RETENTION_SECONDS * 1_000_000)
    names = (found.name for found in bucket.names("staged"))
    bucket.delete([name for name in names if _rows(name).staged_at < before])


def _folder(write_id: UUID) -> str:
    return f"staged/{write_id.hex}"


def _rows(name: str) -> Rows:
    _, _, batch_id, part, last = name.split("/")
    place, part_id = part.split(".")
    start, count, staged_at, _ = last.split(".")
    return Rows(name, int(batch_id), int(place), part_id, int(start), int(count), int(staged_at))


def sweep(bucket: Bucket, model: Model) -> int:
    """Delete objects that the document no longer names, or never did: a process was killed in between."""
    before = datetime.now(UTC) - ORPHAN_AGE
    old = [found.name for prefix in SWEPT for found in bucket.names(prefix) if found.written_at < before]
    if not old:
        return 0
    named = {*model.segments, *_blobs(model.at(model.now, Shelf(bucket)))}
    orphans = [name for name in old if name not in named]
    bucket.delete(orphans)
    return len(orphans)


def _blobs(model: Model) -> Iterator[str]:
    yield from _named(model.events.values())
    yield from (blob[1] for row in model.notes.values() for blob in row if blob is not None and blob[0] == OBJECT)
    for _, segment in archive.segments(model, lambda _: True):
        yield from _named(segment.entries.values())
        notes = segment.notes.values()
        yield from (blob[1] for row in notes for blob in row if blob is not None and blob[0] == OBJECT)


def _named(entries: Collection[Entry]) -> Iterator[str]:
    return (entry.payload for entry in entries if entry.form == OBJECT)
