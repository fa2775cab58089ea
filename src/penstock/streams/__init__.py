"""Exactly-once streams: handlers with state. Effects are applied once per event, across crashes and repeated tasks."""

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
