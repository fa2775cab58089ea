"""URL of an empty state, in each of the state stores."""

from pathlib import Path

import pytest


@pytest.fixture(params=["sqlite", "rocksdb", "postgresql"])
def state(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        found: str = request.getfixturevalue("postgres_url")
        return found
    return f"{request.param}:///{tmp_path / 'state'}"
