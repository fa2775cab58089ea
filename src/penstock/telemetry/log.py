"""Log records: an event name in snake_case and `name=value` fields. Libraries raise; loops and edges log."""

import json
import logging
import re
import sys
from typing import Any, TextIO

_logger = logging.getLogger("penstock")
# Other values are quoted, so that a value cannot imitate another field or another line of the log.
_PLAIN = re.compile(r"""[^\s"'=\\\x00-\x1f\x7f-\x9f\u2028\u2029]+""")


def info(event: str, **fields: Any) -> None:
    _emit(logging.INFO, event, fields)


def warn(event: str, **fields: Any) -> None:
    _emit(logging.WARNING, event, fields)


def debug(event: str, **fields: Any) -> None:
    _emit(logging.DEBUG, event, fields)


class _Stderr(logging.StreamHandler[TextIO]):
    """Handler that looks up `sys.stderr` for every record: a program that embeds a command may replace and close it."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)  # skip StreamHandler.__init__, which would store the current stream

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


def to_stderr(level: int = logging.INFO) -> None:
    """Show the log on standard error. For the command line; library code never calls this function."""
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
    """Return the value unchanged if it is a plain word, otherwise as a JSON string."""
    return value if _PLAIN.fullmatch(value) else json.dumps(value, ensure_ascii=not value.isprintable())
