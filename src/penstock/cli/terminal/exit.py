"""Error reports: one line on standard error with the remedy, and an exit code.

0 is success, 1 a failure, 2 a usage error, 130 Ctrl-C. `PENSTOCK_DEBUG=1` adds the stack trace.
"""

import os
import sys
import traceback

import typer

from penstock.config.urls import mask_url
from penstock.model.errors import PenstockError, UsageError

FAILURE, USAGE = 1, 2
DEBUG_VARIABLE = "PENSTOCK_DEBUG"
LINE_LIMIT = 600


def report_failure(error: Exception) -> int:
    """Print the error on standard error and return its exit code."""
    if os.environ.get(DEBUG_VARIABLE) == "1":
        traceback.print_exception(error)
    code, message = _judge(error)
    line = mask_url(" ".join(message.split()))
    print(f"error: {line if len(line) <= LINE_LIMIT else line[: LINE_LIMIT - 1] + '…'}", file=sys.stderr)
    return code


def _judge(error: Exception) -> tuple[int, str]:
    match error:
        case typer.TyperException():
            return error.exit_code, _with_help(error)
        case UsageError():
            return USAGE, str(error)
        case PenstockError():
            return FAILURE, str(error)
        case UnicodeEncodeError():
            return USAGE, "arguments must be valid UTF-8; use - to read a binary payload from standard input"
        case _:
            return FAILURE, f"{_unforeseen(error)}; set {DEBUG_VARIABLE}=1 for the stack trace"


def _unforeseen(error: Exception) -> str:
    from penstock.pipeline.spark.errors import is_sparks, root_cause

    if is_sparks(error):  # the message contains the JVM's stack trace
        return f"Spark failed: {root_cause(str(error))}"
    return f"unexpected {type(error).__name__}: {error}"


def _with_help(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    message = error.format_message().rstrip(".")
    return f"{message}; see: {context.command_path} --help" if context else message
