"""The one place through which Penstock reports: log lines with named fields. Libraries raise; loops and edges log."""

import logging
import sys
from typing import Any, TextIO

_logger = logging.getLogger("penstock")


def info(message: str, **fields: Any) -> None:
    _emit(logging.INFO, message, fields)


def warn(message: str, **fields: Any) -> None:
    _emit(logging.WARNING, message, fields)


def debug(message: str, **fields: Any) -> None:
    _emit(logging.DEBUG, message, fields)


class _Stderr(logging.StreamHandler[TextIO]):
    """Writes to what is standard error at that moment: somebody who runs a command in their own process may change it,
    and close what it was."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)  # the class between would keep the one of now

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


def to_stderr(level: int = logging.INFO) -> None:
    """Show the log on standard error: for the command line, never called by library code."""
    if not _logger.handlers:
        handler = _Stderr()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S"))
        _logger.addHandler(handler)
    _logger.setLevel(level)
    _logger.propagate = False


def _emit(level: int, message: str, fields: dict[str, Any]) -> None:
    if _logger.isEnabledFor(level):
        shown = " ".join(f"{name}={value}" for name, value in fields.items())
        _logger.log(level, "%s", f"{message} {shown}".rstrip())
