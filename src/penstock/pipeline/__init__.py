"""The data pipeline on Spark. PySpark is imported at the first use of a name, not together with this package."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock.config.extras import needs_extra

if TYPE_CHECKING:
    from penstock.model.outcome import Dropped
    from penstock.pipeline.datasource.publish import publish
    from penstock.pipeline.datasource.settle import settle
    from penstock.pipeline.formats import register
    from penstock.pipeline.relay.driver import run_relay
    from penstock.pipeline.relay.report import RelayReport
    from penstock.pipeline.relay.spec import RelayOptions
    from penstock.pipeline.spark.session import configure, open_session
    from penstock.pipeline.streams.driver import run_streams as run_streams

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
    "Dropped": "penstock.model.outcome",
    "RelayOptions": "penstock.pipeline.relay.spec",
    "RelayReport": "penstock.pipeline.relay.report",
    "configure": "penstock.pipeline.spark.session",
    "open_session": "penstock.pipeline.spark.session",
    "publish": "penstock.pipeline.datasource.publish",
    "register": "penstock.pipeline.formats",
    "run_relay": "penstock.pipeline.relay.driver",
    "run_streams": "penstock.pipeline.streams.driver",
    "settle": "penstock.pipeline.datasource.settle",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        with needs_extra("the pipeline", "spark"):
            return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
