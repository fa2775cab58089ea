"""Payloads, results and progress: short ones in the document, long ones each in a separate object."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from uuid import uuid4

from penstock.model.errors import StoreError
from penstock.store.objects.bucket import DRAFTS, Bucket
from penstock.store.objects.document import OBJECT, PAYLOADS, Blob, Document, from_blob, require_own_objects, to_blob

T = TypeVar("T")

INLINE_BYTES = 4_096
"""Maximum length of bytes stored inside the document; longer bytes become an object."""
THREADS = 16
# Longer than the time between the write of an object and the write of the document that names the object.
ORPHAN_AGE = timedelta(days=1)


class Blobs:
    """Reader and writer of bytes. Several objects are transferred at a time, because each takes a round trip."""

    def __init__(self, bucket: Bucket, shown: str) -> None:
        self.bucket = bucket
        self._shown = shown

    def put(self, name: str, data: bytes) -> Blob:
        """Encode bytes. Long bytes are written to an object first, before any document can name the object."""
        if len(data) <= INLINE_BYTES:
            return to_blob(data)
        # Unique, so that another emit with the same event id can't change the object.
        full_name = f"{PAYLOADS}/{name}.{uuid4().hex}"
        self.bucket.write(full_name, data)
        return OBJECT, full_name

    def get(self, form: int, text: str) -> bytes:
        if form != OBJECT:
            return from_blob(form, text)
        require_own_objects([(form, text)])
        data = self.bucket.read(text)
        if data is None:
            raise StoreError(f"object {text!r} does not exist in {self._shown}; restore it from a backup of the bucket")
        return data

    def map(self, function: Callable[[Any], T], rows: Iterable[Any], is_object: Callable[[Any], bool]) -> list[T]:
        """Apply a function to rows, in threads if several of them have objects."""
        found = list(rows)
        if sum(map(is_object, found)) < 2:
            return list(map(function, found))
        with ThreadPoolExecutor(THREADS, thread_name_prefix="penstock-objects") as pool:
            return list(pool.map(function, found))


def sweep(bucket: Bucket) -> None:
    """Delete old objects that the document doesn't name: left by deleted events and by killed processes."""
    before = datetime.now(UTC) - ORPHAN_AGE
    old = [name for prefix in (PAYLOADS, DRAFTS) for name, written_at in bucket.names(prefix) if written_at < before]
    version = bucket.load() if old else None
    if version is not None:
        entries = Document.from_json(version.data).events.values()
        named = {text for entry in entries for form, text in entry.blobs if form == OBJECT}
        bucket.delete([name for name in old if name not in named])
