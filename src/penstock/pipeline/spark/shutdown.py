"""Start-up of a driver that may be stopped, by SIGTERM or Ctrl-C, before its session is open."""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.model.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def open_unless(ending: threading.Event, open_session: "Callable[[], SparkSession]") -> "SparkSession | None":
    """Open a session; return None if `ending` was set meanwhile.

    A failure to open is then ignored: a signal to a whole process group may have ended the JVM as well.
    """
    try:
        session = open_session()
    except PipelineError:
        if ending.is_set():
            return None
        raise
    return None if ending.is_set() else session
