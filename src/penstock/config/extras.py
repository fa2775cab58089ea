"""Optional dependencies."""

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.model.errors import MissingDriver


@contextmanager
def needs_extra(what: str, extra: str) -> Iterator[None]:
    """Raise `MissingDriver` with the install command if the import of an optional dependency fails."""
    try:
        yield
    except ImportError as error:
        raise MissingDriver(what, extra) from error
