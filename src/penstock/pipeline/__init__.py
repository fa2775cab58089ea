"""The data pipeline on Spark. Importing this package brings no Spark along: that comes with the first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.model.outcome import Dropped
    from penstock.pipeline.publishing import publish
    from penstock.pipeline.relay import RelayOptions, RelayReport, run_relay
    from penstock.pipeline.session import configure, open_session
    from penstock.pipeline.settling import settle
    from penstock.pipeline.source import register

__all__ = [
    "Dropped",
    "RelayOptions",
    "RelayReport",
    "configure",
    "open_session",
    "publish",
    "register",
    "run_relay",
    "settle",
]

_LAZY = {
    "Dropped": "relay",
    "RelayOptions": "relay",
    "RelayReport": "relay",
    "configure": "session",
    "open_session": "session",
    "publish": "publishing",
    "register": "source",
    "run_relay": "relay",
    "settle": "settling",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
