"""Object store helpers for tests: an open store, its committer and document, and a bucket with blocked writes."""

import threading
from typing import Any

from penstock.store.objects.blobs import INLINE_BYTES
from penstock.store.objects.bucket import Bucket, Version
from penstock.store.objects.document import Document
from penstock.store.objects.group_commit import Committer
from penstock.store.objects.store import ObjectStore
from penstock.store.registry import open_store
from penstock.testing.stores.scenario import ManualClock

LARGE = b"\xff" * (INLINE_BYTES + 1)
SECONDS = 60.0


def opened(url: str, clock: ManualClock | None = None) -> ObjectStore:
    store = open_store(url, clock=clock)
    assert isinstance(store, ObjectStore)
    return store


def committer(store: ObjectStore) -> Committer:
    found = store.runtime.committer
    assert found is not None
    return found


def document(store: ObjectStore) -> Document:
    found = store.bucket.load()
    assert found is not None
    return Document.from_json(found.data)


class Brake:
    """A bucket that blocks every compare-and-swap while `off` is cleared."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self.off = threading.Event()
        self.off.set()
        self.waiting = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bucket, name)

    def swap(self, data: bytes, before: Version | None) -> Version:
        if not self.off.is_set():
            self.waiting.set()
            assert self.off.wait(SECONDS)
        return self._bucket.swap(data, before)
