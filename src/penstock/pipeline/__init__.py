"""The data pipeline on Spark. Importing this package brings no Spark along: that comes with the first use."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.pipeline.session import configure, open_session

__all__ = ["configure", "open_session"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from penstock.pipeline import session

        return getattr(session, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
