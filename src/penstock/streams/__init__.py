"""Exactly-once streams: handlers with state, whose effects happen once whatever is killed, lost or run twice."""

from penstock.streams.state.base import Timer
from penstock.streams.windows import Session, Sliding, Tumbling, Window, window_of

__all__ = ["Session", "Sliding", "Timer", "Tumbling", "Window", "window_of"]
