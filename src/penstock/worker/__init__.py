"""Workers: event handlers in the application's process, with the same store, leases and outcomes as the relay."""

from penstock.worker.handler import Middleware
from penstock.worker.options import AckPolicy, HandlerOptions
from penstock.worker.received import Received
from penstock.worker.worker import Worker

__all__ = ["AckPolicy", "HandlerOptions", "Middleware", "Received", "Worker"]
