"""The store on object storage: the conformance suite on a folder, in memory and over S3's protocol, and what only a
queue in one document has to get right."""

from pathlib import Path
from uuid import uuid4

import pytest

from penstock.store import Store, StoreOptions, open_store
from penstock.store.moves import Clock
from penstock.testing.servers import S3Server
from penstock.testing.stores import OpenStore, StoreConformance

# Time stands still in the suite until a test moves it on, and leases are reaped when a test says so.
QUIETLY = "expiry=reap"


def opener(url: str) -> OpenStore:
    def opened(options: StoreOptions | None = None, clock: Clock | None = None) -> Store:
        return open_store(url, options, clock)

    made = opened()
    made.initialise()
    made.close()
    return opened


class TestFolder(StoreConformance):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore:
        return opener(f"objects+file://{tmp_path}/queue?{QUIETLY}")


class TestMemory(StoreConformance):
    @pytest.fixture
    def open_store(self) -> OpenStore:
        return opener(f"objects+memory://{uuid4().hex}?{QUIETLY}")


class TestS3(StoreConformance):
    @pytest.fixture
    def open_store(self, s3_server: S3Server) -> OpenStore:
        return opener(s3_server.url(s3_server.create_bucket(f"b-{uuid4().hex}"), "queue", expiry="reap"))
