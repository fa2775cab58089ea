"""Task spec of a stream: the stream with the user's functions, and the parameters of a Spark job."""

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

# Fields that differ between the Spark jobs of a stream. The local property passes their values to tasks whose plan was
# made before the batch was known.
JOB_FIELDS = ("started", "acknowledged", "parts", "only", "forced_failures", "firing", "topics", "listing")
JOB_PROPERTY = "penstock.job"
# Events without a key are assigned to this state partition, which stores their failures.
PART_WITHOUT_KEY = 0


@dataclass(frozen=True, slots=True)
class StreamTaskSpec:
    """Parameters of a stream's tasks."""

    stream: Stream
    started: Started
    store: str
    state: str
    wants_acknowledgements: bool = False
    """True if the source acknowledges events one by one: tasks then return a result also for events without a lease."""
    acknowledged: Mapping[int, Sequence[Arrival]] = field(default_factory=dict)
    """Acknowledged events by state partition, which can be removed from the inbox."""
    parts: frozenset[int] | None = None
    """State partitions to process; None for all."""
    only: frozenset[Arrival] | None = None
    """Events to process; None for all."""
    forced_failures: Mapping[Arrival, EventFailure] = field(default_factory=dict)
    firing: Firing = USUAL
    idle_advances: Mapping[int, IdleAdvance] = field(default_factory=dict)
    """Idle advances by state partition, for state partitions that advance in event time without events."""
    topics: Mapping[str, str] | None = None
    """Names for source partitions by topic name; None leaves source partitions as the source named them."""
    listing: bool = False
    """True if the task only lists its events and does not process them."""

    ahead: bool = False
    """True if the tasks were planned before the batch was known. They then read the `JOB_FIELDS` from a local property
    of the Spark job."""

    def encode_job(self) -> str:
        """Return the values of the `JOB_FIELDS`, encoded as text."""
        return b64encode(pickle.dumps({name: getattr(self, name) for name in JOB_FIELDS})).decode()

    def for_this_job(self) -> "StreamTaskSpec":
        """Return the spec with the values for the running Spark job. Call this inside a task."""
        if not self.ahead:
            return self
        from pyspark import TaskContext

        context = TaskContext.get()
        text = None if context is None else context.getLocalProperty(JOB_PROPERTY)
        assert text is not None, "missing job property"
        return replace(self, **pickle.loads(b64decode(text)))  # noqa: S301 # by the driver, whose code runs here anyway


def part_and_key(spec: StreamTaskSpec, event: StreamEvent) -> tuple[int, str, str | None]:
    """Return the state partition and the key of an event, and the error if it has no valid key."""
    try:
        key = spec.stream.key_of(event)
        key.encode()
        if "\x00" in key:
            raise ValueError(f"key must not contain a NUL character, got {key!r}")
    except Exception as error:
        return PART_WITHOUT_KEY, "", f"cannot determine the key of the event: {brief(error)}"
    return part_of(key, spec.started.parts), key, None
