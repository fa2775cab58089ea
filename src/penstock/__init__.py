"""Penstock: events from your database transaction to brokers, handlers and streams.

    import penstock

    outbox = penstock.connect("postgresql://localhost/shop")
    with Session(engine) as session, session.begin():
        session.add(order)
        outbox.emit("order.placed", {"id": order.id}, connection=session)

`penstock relay --to URL` then claims the event under a lease and delivers it. The store records the event's history.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock.model.errors import PenstockError
from penstock.model.event import Delivery, Event, EventId
from penstock.model.lifecycle import State
from penstock.model.outcome import Dead, Outcome, Published, Released, Retry
from penstock.model.retry import RetryPolicy

if TYPE_CHECKING:
    from penstock.config.routes import Routes, load_routes
    from penstock.jobs import Jobs, JobsClient
    from penstock.model.selection import Selection
    from penstock.outbox import Outbox, connect
    from penstock.pipeline.streams.app import Streams
    from penstock.worker import AckPolicy, Received, Worker

__version__ = "0.1.0"

__all__ = [
    "AckPolicy",
    "Dead",
    "Delivery",
    "Event",
    "EventId",
    "Jobs",
    "JobsClient",
    "Outbox",
    "Outcome",
    "PenstockError",
    "Published",
    "Received",
    "Released",
    "Retry",
    "RetryPolicy",
    "Routes",
    "Selection",
    "State",
    "Streams",
    "Worker",
    "connect",
    "load_routes",
]


_LAZY = {
    "Jobs": "penstock.jobs",
    "JobsClient": "penstock.jobs",
    "Outbox": "penstock.outbox",
    "Routes": "penstock.config.routes",
    "Selection": "penstock.store.api",
    "Streams": "penstock.pipeline.streams.app",
    "Worker": "penstock.worker",
    "AckPolicy": "penstock.worker",
    "Received": "penstock.worker",
    "connect": "penstock.outbox",
    "load_routes": "penstock.config.routes",
}


def __getattr__(name: str) -> Any:
    """Import public names that need SQLAlchemy on first use, to keep the start of the command line fast."""
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
