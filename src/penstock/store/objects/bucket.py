"""Buckets: reading and writing objects, and compare-and-swap of the queue document.

`ObstoreBucket` leaves the comparison to the object store (`If-Match`, `If-None-Match`). A folder can't compare and
replace in one step, so in a `FolderBucket` the version is part of the document's file name: a name can be created only
once, and the newest version is current.
"""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from penstock.config.permissions import create_file, make_folder, sync_folder
from penstock.model.errors import StoreUnavailable

DOCUMENT = "queue.json"
DRAFTS = "drafts"
_NUMBERED = re.compile(r"queue\.(\d{12})\.json")


class Overtaken(Exception):
    """The document has changed since it was read: by another process, or by our own write whose answer was lost."""


@dataclass(frozen=True, slots=True)
class Version:
    """One version of the document, and the tag that identifies the version."""

    data: bytes
    tag: Any


class ObstoreBucket:
    """A bucket, or a prefix of one, through obstore."""

    def __init__(self, store: Any, shown: str) -> None:
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
            raise StoreUnavailable(f"cannot access {self._shown}: {first}") from error

    def load(self) -> Version | None:
        with self._translated():
            try:
                found = self._store.get(DOCUMENT)
                return Version(bytes(found.bytes()), _tag(found.meta))
            except self._absent:
                return None

    def swap(self, data: bytes, before: Version | None) -> Version:
        mode = "create" if before is None else before.tag
        with self._translated():
            try:
                return Version(data, _tag(self._store.put(DOCUMENT, data, mode=mode, use_multipart=False)))
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
        for name in names:
            with suppress(*self._failures):  # some servers fail if another process has just deleted the object
                self._store.delete(name)

    def names(self, prefix: str) -> Iterator[tuple[str, datetime]]:
        with self._translated():
            for batch in self._store.list(prefix):
                for found in batch:
                    yield found["path"], found["last_modified"]


def _tag(meta: Any) -> dict[str, str]:
    """Return the values that the object store compares: entity tag, version, or both."""
    return {name: meta[name] for name in ("e_tag", "version") if meta.get(name) is not None}


class FolderBucket:
    """A folder that several processes share, on one machine or on a file system with hard links.

    Files and folders are synced before a write returns, so that the write survives a power cut. New files and folders
    are accessible to their owner only, because the document contains the broker's secret.
    """

    def __init__(self, folder: Path, shown: str) -> None:
        self._folder = folder
        self._shown = shown

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreUnavailable(f"cannot access {self._shown}: {error}") from error

    def _versions(self) -> list[int]:
        try:
            found = (_NUMBERED.fullmatch(name) for name in os.listdir(self._folder))
        except FileNotFoundError:
            return []
        return sorted(int(match[1]) for match in found if match is not None)

    def _document(self, version: int) -> Path:
        return self._folder / f"queue.{version:012}.json"

    def load(self) -> Version | None:
        with self._translated():
            while versions := self._versions():
                with suppress(FileNotFoundError):  # replaced by a newer one meanwhile
                    return Version(self._document(versions[-1]).read_bytes(), versions[-1])
            return None

    def swap(self, data: bytes, before: Version | None) -> Version:
        version = 1 if before is None else before.tag + 1
        with self._translated():
            try:
                self._create(self._document(version), data)
            except FileExistsError as error:
                raise Overtaken from error
            # If a newer version exists, this name was free only because a newer swap had deleted the file: we lost.
            versions = self._versions()
            for old in versions:
                if old < versions[-1]:
                    self._document(old).unlink(missing_ok=True)
            if versions[-1] != version:
                raise Overtaken
        return Version(data, version)

    def _create(self, path: Path, data: bytes) -> None:
        """Create a file with all its content, or raise `FileExistsError`."""
        drafts = self._folder / DRAFTS
        for folder in (path.parent, drafts):
            make_folder(folder)
        draft = drafts / uuid4().hex
        try:
            with open(create_file(draft), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.link(draft, path)
        finally:
            draft.unlink(missing_ok=True)
        sync_folder(path.parent)

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

    def names(self, prefix: str) -> Iterator[tuple[str, datetime]]:
        with self._translated():
            for path in sorted((self._folder / prefix).rglob("*")):
                with suppress(FileNotFoundError):
                    if path.is_file():
                        yield path.relative_to(self._folder).as_posix(), _written_at(path)


def _written_at(path: Path) -> datetime:
    return datetime.fromtimestamp(path.stat().st_mtime, UTC)


Bucket = ObstoreBucket | FolderBucket
