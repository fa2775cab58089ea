"""How a handler is to be run. Values only, and a default for each: `@worker.handler("emails")` alone works well."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite

from penstock.model.errors import UsageError, require
from penstock.model.retry import RetryPolicy

MANY = 1_000_000


class AckPolicy(StrEnum):
    """What becomes of an event that its handler did not decide on by itself."""

    ACK_FIRST = "ack_first"
    """It is done with before the handler runs: at most once, and an error changes nothing."""
    ACK = "ack"
    """It is done with after the handler, whether it raised or not."""
    REJECT_ON_ERROR = "reject_on_error"
    """An error is final: the event is dead."""
    NACK_ON_ERROR = "nack_on_error"
    """An error is retried by the retry policy, and final at the last attempt."""
    MANUAL = "manual"
    """Only the handler decides, while it runs or later; until then the event stays claimed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerOptions:
    """The options of one handler. The first group has the names and meanings that SQL queues know them by."""

    max_workers: int = 10
    """How many events are handled at a time, in this process."""
    fetch_batch_size: int = 100
    """The most that one claim takes."""
    overfetch_factor: float = 1.5
    """How many batches may wait in this process: those being handled don't count."""
    min_fetch_interval: float = 0.0
    """Seconds from a full claim to the next one."""
    max_fetch_interval: float | None = None
    """Seconds from any other claim to the next one, if nothing wakes the worker before: 1 where the database can wake
    it, 0.1 elsewhere."""
    flush_interval: float = 0.1
    """Seconds that an outcome waits for others before it is written; a batch that is done is written at once."""
    release_stuck_interval: float = 5.0
    """Seconds between two looks for events whose worker has died."""
    release_stuck_timeout: float = 60.0
    """The lease: how long events of a worker that no longer beats stay its own."""
    max_deliveries: int | None = None
    """Hand-outs after which an event is dead, whatever became of them."""
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    ack_policy: AckPolicy = AckPolicy.NACK_ON_ERROR
    keep_on_ack: bool = True
    """Whether the archive keeps what was handled; otherwise it is deleted."""
    keep_on_reject: bool = True
    """Whether the archive keeps the dead; otherwise they are deleted."""

    types: Sequence[str] | None = None
    """Only events of these types; the queue's others are for other handlers."""
    timeout_seconds: float | None = None
    """How long one call may take; longer is an error."""
    batch_size: int | None = None
    """The most events that one call gets: the handler takes a list."""
    max_claimed: int | None = None
    """The most events of this queue that may be claimed at a time, over all processes."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "ack_policy", _policy(self.ack_policy))
        for name in ("max_workers", "fetch_batch_size"):
            require(1 <= getattr(self, name) <= MANY, f"{name} must lie in 1 to {MANY:,}")
        for name in ("max_deliveries", "batch_size", "max_claimed"):
            given = getattr(self, name)
            require(given is None or given >= 1, f"{name} must be 1 or more")
        require(self.overfetch_factor >= 1, "overfetch_factor must be 1 or more")
        for name in ("min_fetch_interval", "max_fetch_interval", "flush_interval"):
            given = getattr(self, name)
            require(given is None or (isfinite(given) and given >= 0), f"{name} must be 0 s or more")
        for name in ("release_stuck_interval", "release_stuck_timeout", "timeout_seconds"):
            given = getattr(self, name)
            require(given is None or (isfinite(given) and given > 0), f"{name} must be more than 0 s")
        require(self.types is None or len(self.types) > 0, "types must name one type or more; leave it out for all")
        if isinstance(self.types, str):
            raise UsageError("types is a list of names, not one name")

    @property
    def capacity(self) -> int:
        """How many events may wait in this process."""
        return int(self.fetch_batch_size * self.overfetch_factor)


def _policy(given: AckPolicy | str) -> AckPolicy:
    """A policy may be given by its name."""
    try:
        return AckPolicy(given)
    except ValueError:
        raise UsageError(f"there is no ack policy {given!r}; there are: {', '.join(AckPolicy)}") from None
