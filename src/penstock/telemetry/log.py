"""Log lines: an event name in snake_case, then `name=value` fields. Libraries raise; loops and edges log."""

import json
import logging
import re
import sys
from typing import Any, TextIO

_logger = logging.getLogger("penstock")
# Everything else is quoted: a value cannot begin another field or another line.
_PLAIN = re.compile(r"""[^\s"'=\\\x00-\x1f\x7f-\x9f\u2028\u2029]+""")


def info(event: str, **fields: Any) -> None:
    _emit(logging.INFO, event, fields)


def warn(event: str, **fields: Any) -> None:
    _emit(logging.WARNING, event, fields)


def debug(event: str, **fields: Any) -> None:
    _emit(logging.DEBUG, event, fields)


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


def _emit(level: int, event: str, fields: dict[str, Any]) -> None:
    if _logger.isEnabledFor(level):
        shown = (f"{name}={_quoted(str(value))}" for name, value in fields.items() if value is not None)
        _logger.log(level, "%s", " ".join((event, *shown)))


def _quoted(value: str) -> str:
    """Return a value as it is if it is one plain word, and as a JSON string otherwise."""
    return value if _PLAIN.fullmatch(value) else json.dumps(value, ensure_ascii=not value.isprintable())
