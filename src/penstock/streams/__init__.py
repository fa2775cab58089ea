"""Exactly-once streams: handlers with state, whose effects happen once whatever is killed, lost or run twice."""

from penstock.streams.context import Context
from penstock.streams.engine.batch_handlers import BatchContext
from penstock.streams.engine.windows import Session, Sliding, Tumbling, Window, window_of
from penstock.streams.event import StreamEvent
from penstock.streams.sources import Frame, Kafka, Queue, Valkey
from penstock.streams.state.api import Timer

__all__ = [
    "BatchContext",
    "Context",
    "Frame",
    "Kafka",
    "Queue",
    "Session",
    "Sliding",
    "StreamEvent",
    "Timer",
    "Tumbling",
    "Valkey",
    "Window",
    "window_of",
]
