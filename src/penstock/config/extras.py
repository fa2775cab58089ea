"""Optional dependencies."""

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.model.errors import MissingDriver


@contextmanager
def needs_extra(what: str, extra: str) -> Iterator[None]:
    """Turn a failed import of an optional dependency into the command that installs it."""
    try:
        yield
    except ImportError as error:
        raise MissingDriver(what, extra) from error
