"""An event on its way through a stream: what a handler is given, wherever it came from."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from penstock.streams.state.base import Arrival, Position


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One event. `position` is for sources whose order is fixed; others are told apart by id and replays."""

    event_id: str
    key: str
    payload: bytes = b""
    event_type: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    created_at: datetime | None = None
    replays: int = 0
    attempts: int = 0
    partition_key: str | None = None
    ordering_key: str | None = None
    position: Position | None = None

    @property
    def arrival(self) -> Arrival:
        return Arrival(self.event_id, self.replays)

    def json(self) -> Any:
        """The payload, decoded from JSON."""
        return json.loads(self.payload)

    def text(self) -> str:
        """The payload, decoded from UTF-8."""
        return self.payload.decode()
