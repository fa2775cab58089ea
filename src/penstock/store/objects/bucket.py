"""Objects: reading, writing, and swapping the one document for its next version if nobody else has.

`ObstoreBucket` leaves the comparison to the object store (`If-Match`, `If-None-Match`). `FolderBucket` has a folder
only, where nothing can be compared and replaced in one step: there the document's version is part of its name, a name
can be made only once, and the newest one counts.
"""

import os
import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from penstock.config import needs_extra
from penstock.errors import StoreUnavailable

DOCUMENT = "queue.json"
DRAFTS = "drafts"
_NUMBERED = re.compile(r"queue\.(\d{12})\.json")


class Overtaken(Exception):
    """Somebody else has written the document since it was read; or our own write did land, and we were not told."""


@dataclass(frozen=True, slots=True)
class Document:
    """The document as it was read or written, and what its version is known by."""

    data: bytes
    tag: Any


@dataclass(frozen=True, slots=True)
class Listed:
    name: str
    written_at: datetime


class Bucket(Protocol):
    """The few things that a queue needs of an object store."""

    def load(self) -> Document | None:
        """The document; None where there is none."""
        ...

    def swap(self, data: bytes, before: Document | None) -> Document:
        """Write the document if it still is as it was `before`; None says that there must be none."""
        ...

    def read(self, name: str) -> bytes | None: ...
    def write(self, name: str, data: bytes) -> None: ...
    def delete(self, names: Iterable[str]) -> None: ...
    def names(self, prefix: str) -> Iterator[Listed]: ...


class ObstoreBucket:
    """A bucket, or a part of one, through obstore."""

    def __init__(self, store: Any, shown: str) -> None:
        with needs_extra("a queue on object storage", "objects"):
            from obstore import exceptions
        self._store = store
        self._shown = shown
        self._absent = (exceptions.NotFoundError, FileNotFoundError)
        self._conflicts = (exceptions.AlreadyExistsError, exceptions.PreconditionError)
        self._failures = (exceptions.BaseError, OSError)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except self._failures as error:
            first = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise StoreUnavailable(f"can't use {self._shown}: {first}") from error

    def load(self) -> Document | None:
        with self._translated():
            try:
                found = self._store.get(DOCUMENT)
                return Document(bytes(found.bytes()), _tag(found.meta))
            except self._absent:
                return None

    def swap(self, data: bytes, before: Document | None) -> Document:
        mode = "create" if before is None else before.tag
        with self._translated():
            try:
                return Document(data, _tag(self._store.put(DOCUMENT, data, mode=mode, use_multipart=False)))
            except (*self._conflicts, *self._absent) as error:
                raise Overtaken from error

    def read(self, name: str) -> bytes | None:
        with self._translated():
            try:
                return bytes(self._store.get(name).bytes())
            except self._absent:
                return None

    def write(self, name: str, data: bytes) -> None:
        with self._translated():
            self._store.put(name, data)

    def delete(self, names: Iterable[str]) -> None:
        with self._translated():
            for name in names:
                self._delete(name)

    def _delete(self, name: str) -> None:
        """Gone is gone: that someone else was faster is no error, by whatever name a server calls it."""
        try:
            self._store.delete(name)
        except self._failures:
            if self._has(name):
                raise

    def _has(self, name: str) -> bool:
        try:
            self._store.head(name)
        except self._absent:
            return False
        return True

    def names(self, prefix: str) -> Iterator[Listed]:
        with self._translated():
            for batch in self._store.list(prefix):
                for found in batch:
                    yield Listed(found["path"], found["last_modified"])


def _tag(meta: Any) -> dict[str, str]:
    """What a store compares: it may have either, or both."""
    return {name: meta[name] for name in ("e_tag", "version") if meta.get(name) is not None}


class FolderBucket:
    """A folder that several processes share, on one machine or on a file system with hard links.

    What was written survives a power cut: files and folders are synced before a write is called done.
    """

    def __init__(self, folder: Path, shown: str) -> None:
        self._folder = folder
        self._shown = shown

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreUnavailable(f"can't use {self._shown}: {error}") from error

    def _versions(self) -> list[int]:
        try:
            found = (_NUMBERED.fullmatch(name) for name in os.listdir(self._folder))
        except FileNotFoundError:
            return []
        return sorted(int(match[1]) for match in found if match is not None)

    def _document(self, version: int) -> Path:
        return self._folder / f"queue.{version:012}.json"

    def load(self) -> Document | None:
        with self._translated():
            while versions := self._versions():
                with suppress(FileNotFoundError):  # a newer one has come since, and this one is gone
                    return Document(self._document(versions[-1]).read_bytes(), versions[-1])
            return None

    def swap(self, data: bytes, before: Document | None) -> Document:
        version = 1 if before is None else before.tag + 1
        with self._translated():
            try:
                self._create(self._document(version), data)
            except FileExistsError as error:
                raise Overtaken from error
            # A version that is not the newest was long gone when we made it, and counts for nobody.
            versions = self._versions()
            for old in versions:
                if old < versions[-1]:
                    self._document(old).unlink(missing_ok=True)
            if versions[-1] != version:
                raise Overtaken
        return Document(data, version)

    def _create(self, path: Path, data: bytes) -> None:
        """Under its name all at once, and only if nothing has that name."""
        path.parent.mkdir(parents=True, exist_ok=True)
        drafts = self._folder / DRAFTS
        drafts.mkdir(exist_ok=True)
        draft = drafts / uuid4().hex
        try:
            with draft.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.link(draft, path)
        finally:
            draft.unlink(missing_ok=True)
        _sync(path.parent)

    def read(self, name: str) -> bytes | None:
        with self._translated():
            try:
                return (self._folder / name).read_bytes()
            except FileNotFoundError:
                return None

    def write(self, name: str, data: bytes) -> None:
        with self._translated(), suppress(FileExistsError):
            self._create(self._folder / name, data)

    def delete(self, names: Iterable[str]) -> None:
        with self._translated():
            for name in names:
                (self._folder / name).unlink(missing_ok=True)

    def names(self, prefix: str) -> Iterator[Listed]:
        with self._translated():
            for path in sorted((self._folder / prefix).rglob("*")):
                with suppress(FileNotFoundError):
                    if path.is_file():
                        written_at = datetime.fromtimestamp(path.stat().st_mtime, UTC)
                        yield Listed(path.relative_to(self._folder).as_posix(), written_at)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Shelf:
    """Objects beside the document, read through a small cache: none of them ever changes.

    For a pass it also holds what was written in it: those become objects before the document that names them does.
    """

    KEPT_BYTES = 64 * 1024 * 1024

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._lock = threading.Lock()
        self._kept: dict[str, bytes] = {}
        self._size = 0
        self.fresh: dict[str, bytes] = {}

    def read(self, name: str) -> bytes | None:
        data = self.fresh.get(name) or self._kept.get(name)
        if data is None:
            data = self._bucket.read(name)
            if data is not None:
                self._keep(name, data)
        return data

    def write(self, name: str, data: bytes) -> None:
        self.fresh[name] = data

    def _keep(self, name: str, data: bytes) -> None:
        with self._lock:
            if self._kept.setdefault(name, data) is data:
                self._size += len(data)
            while self._size > self.KEPT_BYTES:
                self._size -= len(self._kept.pop(next(iter(self._kept))))

    def flush(self) -> None:
        """Make objects of what was written."""
        while self.fresh:
            name, data = next(iter(self.fresh.items()))
            self._bucket.write(name, data)
            self._keep(name, data)
            del self.fresh[name]
