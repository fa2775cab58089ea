"""Stops a driver in order on SIGTERM and Ctrl-C."""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.model.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def open_unless(ending: threading.Event, open_session: "Callable[[], SparkSession]") -> "SparkSession | None":
    """Open a session. None if all is to end by then: whoever signals a whole process group may have ended Java, too."""
    try:
        session = open_session()
    except PipelineError:
        if ending.is_set():
            return None
        raise
    return None if ending.is_set() else session
