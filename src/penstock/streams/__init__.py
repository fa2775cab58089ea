"""Exactly-once streams: handlers with state, whose effects happen once whatever is killed, lost or run twice."""

from penstock.streams.batches import BatchContext
from penstock.streams.context import Context
from penstock.streams.event import StreamEvent
from penstock.streams.sources import Frame, Kafka, Queue, Valkey
from penstock.streams.state.base import Timer
from penstock.streams.windows import Session, Sliding, Tumbling, Window, window_of

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
