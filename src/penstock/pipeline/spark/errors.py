"""Errors of Spark and of its JVM, as one line each."""

import errno
import re
from typing import TYPE_CHECKING

from penstock.model.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


def root_cause(text: str) -> str:
    """The one line of a Spark error that says what went wrong."""
    if tracebacks := list(re.finditer(r"^( *)(?:\S.*)?Traceback \(most recent call last\):$", text, re.MULTILINE)):
        margin = tracebacks[-1][1]
        if found := re.compile(rf"^{margin}(\S.*)$", re.MULTILINE).search(text, tracebacks[-1].end()):
            return found[1]
    if found := re.search(r"most recent failure: (?:Lost task [^:]*: )?(.*)", text):
        return found[1].partition(" Consider setting")[0].strip()
    lines = (line.strip(" \t:") for line in text.splitlines() if not line.startswith("An error occurred while calling"))
    return next(filter(None, lines), "Spark reported no error message")


def innermost_cause(error: BaseException) -> str:
    """The innermost of Java's causes, or the root cause where Java names none, as one line."""
    causes = re.findall(r"^\s*Caused by: (.+)$", str(error), re.MULTILINE)
    return str(causes[-1]) if causes else root_cause(str(error))


def readable(error: BaseException) -> BaseException:
    """Errors of Java and Spark as one line; the caller's own stay what they are."""
    return PipelineError(f"slice failed: {root_cause(str(error))}") if is_sparks(error) else error


def state_of(query: "StreamingQuery") -> tuple[bool, Exception | None]:
    """Whether the query is running, and what it failed of if it isn't."""
    try:
        return (True, None) if query.isActive else (False, query.exception())
    except Exception as error:
        raise gone(error) from None


def is_waiting(query: "StreamingQuery") -> bool:
    """True if the query waits for new rows: a batch that it had to repeat is done."""
    try:
        return bool(query.status["message"].startswith("Waiting"))
    except Exception as error:
        raise gone(error) from None


def java_is_gone(error: BaseException) -> bool:
    """Whether it is the connection to Java that failed: by itself, or as one that is closed by now. Errors of the disk
    are not of it."""
    closed = isinstance(error, OSError) and error.errno == errno.EBADF
    return closed or isinstance(error, ConnectionError) or type(error).__name__ == "Py4JNetworkError"


def gone(error: BaseException) -> PipelineError:
    return PipelineError(f"lost the connection to Spark's JVM ({type(error).__name__}); start again")


def stop_query(query: "StreamingQuery") -> BaseException | None:
    """Stop the query, and say what it had failed of."""
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
