"""What a task of a stream is sent out with: the stream, a small value with the user's functions, and what is to be done
this time."""

import pickle
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from penstock.model.text import brief
from penstock.streams.app import Stream, part_of
from penstock.streams.engine.partition import USUAL, Firing
from penstock.streams.engine.watermarks import IdleAdvance
from penstock.streams.engine.work import EventFailure
from penstock.streams.event import StreamEvent
from penstock.streams.state.api import Arrival, Started

# What the task spec of each job says anew; and the property of a job by which its tasks learn it.
JOB_FIELDS = ("started", "acknowledged", "parts", "only", "forced_failures", "firing", "topics", "listing")
JOB_PROPERTY = "penstock.job"
# An event without a key has a part all the same: that it failed is kept there.
PART_WITHOUT_KEY = 0


@dataclass(frozen=True, slots=True)
class StreamTaskSpec:
    """All that a task needs to know."""

    stream: Stream
    started: Started
    store: str
    state: str
    wants_acknowledgements: bool = False
    """Whether the source is to hear of events one by one, also without a lease."""
    acknowledged: Mapping[int, Sequence[Arrival]] = field(default_factory=dict)
    """By part, what the source has the acknowledgement of: the inbox may forget it."""
    parts: frozenset[int] | None = None
    """Only these parts; the others are done."""
    only: frozenset[Arrival] | None = None
    """Only these events."""
    forced_failures: Mapping[Arrival, EventFailure] = field(default_factory=dict)
    firing: Firing = USUAL
    idle_advances: Mapping[int, IdleAdvance] = field(default_factory=dict)
    """Parts whose time moves on without events."""
    topics: Mapping[str, str] | None = None
    """By the names of topics, how their partitions are named; None: as they came."""
    listing: bool = False
    """Nothing is done: the task lists its events."""

    ahead: bool = False
    """It was planned before there was a batch: what differs from job to job comes as a property of the job."""

    def encode_job(self) -> str:
        """What of it differs from job to job, as a text."""
        return b64encode(pickle.dumps({name: getattr(self, name) for name in JOB_FIELDS})).decode()

    def for_this_job(self) -> "StreamTaskSpec":
        """In a task: it, with what the order for its job says."""
        if not self.ahead:
            return self
        from pyspark import TaskContext

        context = TaskContext.get()
        text = None if context is None else context.getLocalProperty(JOB_PROPERTY)
        assert text is not None, "a job that was planned ahead has its order"
        return replace(self, **pickle.loads(b64decode(text)))  # noqa: S301 # by the driver, whose code this runs anyway


def part_and_key(spec: StreamTaskSpec, event: StreamEvent) -> tuple[int, str, str | None]:
    """Where an event belongs, and its key; or why it has none."""
    try:
        key = spec.stream.key_of(event)
        key.encode()
        if "\x00" in key:
            raise ValueError("a key can't contain a NUL character")
    except Exception as error:
        return PART_WITHOUT_KEY, "", f"its key can't be told: {brief(error)}"
    return part_of(key, spec.started.parts), key, None
