"""One-line errors for failures of Spark and its JVM; state and stop of a query."""

import errno
import re
from typing import TYPE_CHECKING

from penstock.model.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


def root_cause(text: str) -> str:
    """Return the line of a Spark error that names its cause: of a Python traceback, if the error contains one."""
    if tracebacks := list(re.finditer(r"^( *)(?:\S.*)?Traceback \(most recent call last\):$", text, re.MULTILINE)):
        margin = tracebacks[-1][1]
        if found := re.compile(rf"^{margin}(\S.*)$", re.MULTILINE).search(text, tracebacks[-1].end()):
            return found[1]
    if found := re.search(r"most recent failure: (?:Lost task [^:]*: )?(.*)", text):
        return found[1].partition(" Consider setting")[0].strip()
    lines = (line.strip(" \t:") for line in text.splitlines() if not line.startswith("An error occurred while calling"))
    return next(filter(None, lines), "Spark reported no error message")


def innermost_cause(error: BaseException) -> str:
    """Return the last `Caused by` line of a Java stack trace; `root_cause` if it has none."""
    causes = re.findall(r"^\s*Caused by: (.+)$", str(error), re.MULTILINE)
    return str(causes[-1]) if causes else root_cause(str(error))


def readable(error: BaseException) -> BaseException:
    """Convert an error of Spark or the JVM to a one-line PipelineError; return any other error unchanged."""
    return PipelineError(f"slice failed: {root_cause(str(error))}") if is_sparks(error) else error


def state_of(query: "StreamingQuery") -> tuple[bool, Exception | None]:
    """Return whether the query is active and, if it is not, the error that ended it."""
    try:
        return (True, None) if query.isActive else (False, query.exception())
    except Exception as error:
        raise gone(error) from None


def is_waiting(query: "StreamingQuery") -> bool:
    """True if the query waits for new rows, which means that it has no failed batch left to repeat."""
    try:
        return bool(query.status["message"].startswith("Waiting"))
    except Exception as error:
        raise gone(error) from None


def java_is_gone(error: BaseException) -> bool:
    """True if the connection to the JVM failed or is already closed; False for other errors, such as disk errors."""
    closed = isinstance(error, OSError) and error.errno == errno.EBADF
    return closed or isinstance(error, ConnectionError) or type(error).__name__ == "Py4JNetworkError"


def gone(error: BaseException) -> PipelineError:
    return PipelineError(f"lost the connection to Spark's JVM ({type(error).__name__}); start again")


def stop_query(query: "StreamingQuery") -> BaseException | None:
    """Stop the query; return the error that had ended it or that prevented the stop, if any."""
    try:
        query.stop()
        error = query.exception()
    except Exception as failure:
        if java_is_gone(failure):
            return gone(failure)
        return PipelineError(f"cannot stop the Spark query ({type(failure).__name__}): {root_cause(str(failure))}")
    return None if error is None else PipelineError(f"Spark query failed: {root_cause(str(error))}")


def is_sparks(error: BaseException) -> bool:
    return type(error).__module__.startswith(("py4j.", "pyspark."))
