"""One Spark session for all tests that need it: starting one takes seconds."""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

os.environ["PENSTOCK_SPARK_ARCHIVE"] = "off"

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    from penstock.pipeline import open_session

    session = open_session("local[2]", "penstock-tests")
    yield session
    session.stop()
