"""One Spark session for all tests that need it: starting one takes seconds."""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from penstock.pipeline import archive
from penstock.pipeline.java import find_java

# An archive of classes halves the start of each Java, but none is made behind the tests' backs.
os.environ[archive.VARIABLE] = "on" if archive.archive_path(find_java()).exists() else "off"

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    from penstock.pipeline import open_session

    session = open_session("local[2]", "penstock-tests")
    yield session
    session.stop()
