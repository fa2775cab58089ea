"""The S3 test server keeps confirmed objects, and only one of two concurrent conditional writes succeeds."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from obstore.exceptions import AlreadyExistsError, PreconditionError

from tests.support.installations import MissingService, find_s3
from tests.support.processes import living
from tests.support.servers import S3Server

RACES = 1_000


@pytest.mark.crash
def test_confirmed_objects_survive_kill_on_same_port(s3_server: S3Server) -> None:
    with S3Server() as server:
        endpoint, folder, pid = server.endpoint, server.folder, server.pid
        server.bucket(server.create_bucket("kept")).put("one", b"body")
        server.kill()
        server.start()
        assert server.endpoint == endpoint
        assert bytes(server.bucket("kept").get("one").bytes()) == b"body"
    assert pid not in living()
    assert not folder.exists()


def test_one_of_two_concurrent_conditional_writes_succeeds(s3_server: S3Server) -> None:
    """Queues on object storage depend on atomic conditional writes; without them events would be lost."""
    name = s3_server.create_bucket("races")
    writers = [s3_server.bucket(name) for _ in range(2)]
    together = Barrier(2)

    def swap(writer: Any, mode: Any, body: bytes) -> dict[str, str] | None:
        together.wait()
        try:
            written = writer.put("object", body, mode=mode, use_multipart=False)
        except (AlreadyExistsError, PreconditionError):
            return None
        return {"e_tag": written["e_tag"]}

    mode: Any = "create"
    with ThreadPoolExecutor(2) as pool:
        for number in range(RACES):
            bodies = [f"{number} by {writer}".encode() for writer in range(2)]
            tags = list(pool.map(swap, writers, [mode, mode], bodies))
            (winner,) = [place for place, tag in enumerate(tags) if tag is not None]
            mode = tags[winner]
            assert bytes(writers[0].get("object").bytes()) == bodies[winner]


def test_missing_s3_binary_is_missing_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingService, match="make services"):
        find_s3(tmp_path)
