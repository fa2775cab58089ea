"""An open queue: its address, its bucket, the threads that carry out its verbs, and bytes in and out of objects."""

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from penstock.errors import StoreError
from penstock.store.base import StoreOptions
from penstock.store.objects.address import open_bucket, parse
from penstock.store.objects.emitting import PAYLOAD_LIMIT, blob_name
from penstock.store.objects.runtime import Runtime
from penstock.store.objects.values import OBJECT, Blob, from_blob, to_blob
from penstock.store.objects.wire import Get
from penstock.store.schema import to_micros

Clock = Callable[[], datetime]

READERS = 16


class Opened:
    """What the verbs stand on. Nothing connects before the first one."""

    def __init__(self, url: str, options: StoreOptions, clock: Clock | None = None) -> None:
        self.options = options
        self.clock = clock
        self.address = parse(url, options.settings)
        self.url = self.address.shown
        self.bucket = open_bucket(self.address)
        self._lock = threading.Lock()
        self._runtime: Runtime | None = None
        self._owner = os.getpid()
        self._readers: ThreadPoolExecutor | None = None

    def _micros(self) -> int:
        return to_micros(datetime.now(UTC) if self.clock is None else self.clock())

    @property
    def runtime(self) -> Runtime:
        """The threads of this process: a forked child has none of its parent's."""
        known = self._runtime
        if known is not None and self._owner == os.getpid():
            return known
        with self._lock:
            if self._runtime is None or self._owner != os.getpid():
                self._runtime = Runtime(self.address, self.bucket, self._micros)
                self._owner = os.getpid()
            return self._runtime

    def _change(self, verb: str, **args: Any) -> Any:
        return self.runtime.change(verb, args)

    def _look(self, verb: str, **args: Any) -> Any:
        return self.runtime.look(verb, args)

    def close(self) -> None:
        with self._lock:
            runtime, self._runtime = self._runtime, None
            readers, self._readers = self._readers, None
        if runtime is not None and self._owner == os.getpid():
            runtime.close()
        if readers is not None:
            readers.shutdown()

    # -- bytes ------------------------------------------------------------------------------------------------

    def _put(self, name: str, data: bytes) -> Blob:
        """In place if they are few, else in an object, which is there before anybody hears of its name."""
        if len(data) <= PAYLOAD_LIMIT:
            return to_blob(data)
        full_name = blob_name(name, uuid4().hex)
        self.bucket.write(full_name, data)
        return OBJECT, full_name

    def _get(self, form: int, text: str) -> bytes:
        if form != OBJECT:
            return from_blob(form, text)
        data = self.bucket.read(text)
        if data is None:
            raise StoreError(f"the object {text} of {self.url} is gone; restore it from a backup of the bucket")
        return data

    def _read_all(self, rows: Iterable[Any], read: Callable[[Any, Get], Any], form: Callable[[Any], int]) -> Any:
        """Objects are read several at a time: each takes as long as the way to the bucket."""
        found = list(rows)
        if sum(form(row) == OBJECT for row in found) < 2:
            return [read(row, self._get) for row in found]
        return list(self._pool().map(lambda row: read(row, self._get), found))

    def _pool(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._readers is None:
                self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="penstock-objects")
            return self._readers
