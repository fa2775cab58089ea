"""Options of handlers. Each has a default, so that `@worker.handler("emails")` alone works well."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite

from penstock.model.errors import UsageError, require
from penstock.model.retry import RetryPolicy

MANY = 1_000_000


class AckPolicy(StrEnum):
    """Outcome of an event that its handler did not decide explicitly."""

    ACK_FIRST = "ack_first"
    """Publish the event before the call (at most once). An exception of the handler changes nothing."""
    ACK = "ack"
    """Publish the event after the call, even if the handler raises an exception."""
    REJECT_ON_ERROR = "reject_on_error"
    """Make the event dead if the handler raises an exception."""
    NACK_ON_ERROR = "nack_on_error"
    """Retry the event by the retry policy if the handler raises an exception; dead at the last attempt."""
    MANUAL = "manual"
    """Leave the decision to the handler, during the call or later; until then the event stays claimed.

    An exception is retried by the retry policy.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerOptions:
    """Options of one handler. The options of the first group have the names and meanings common to SQL queues."""

    max_workers: int = 10
    """Number of concurrent calls in this process."""
    fetch_batch_size: int = 100
    """Maximum number of events per claim."""
    overfetch_factor: float = 1.5
    """Number of waiting events in this process as a multiple of `fetch_batch_size`; running events don't count."""
    min_fetch_interval: float = 0.0
    """Seconds from a full claim to the next claim."""
    max_fetch_interval: float | None = None
    """Seconds from any other claim to the next claim, unless a wake-up arrives first.

    Default: 1 if the database can wake the worker, 0.1 otherwise.
    """
    flush_interval: float = 0.1
    """Seconds that an outcome waits for others before it is written. A completed batch is written at once."""
    release_stuck_interval: float = 5.0
    """Seconds between two reaps of expired leases."""
    release_stuck_timeout: float = 60.0
    """Seconds until a lease expires without a heartbeat, so that other workers can claim its events."""
    max_deliveries: int | None = None
    """Maximum number of deliveries; an event delivered more often becomes dead, whatever its outcomes were."""
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    ack_policy: AckPolicy = AckPolicy.NACK_ON_ERROR
    keep_on_ack: bool = True
    """True to keep handled events in the archive, False to delete them."""
    keep_on_reject: bool = True
    """True to keep dead events in the archive, False to delete them."""

    types: Sequence[str] | None = None
    """Event types to handle; None for all types. Other handlers may serve other types of the queue."""
    timeout_seconds: float | None = None
    """Maximum duration of a call in seconds. A longer call counts as failed."""
    batch_size: int | None = None
    """Maximum number of events per call; if set, the handler receives a list."""
    max_claimed: int | None = None
    """Maximum number of events of this queue that all processes together may have claimed."""

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
        """Maximum number of events that wait in this process."""
        return int(self.fetch_batch_size * self.overfetch_factor)


def _policy(given: AckPolicy | str) -> AckPolicy:
    """Return the ack policy with a name."""
    try:
        return AckPolicy(given)
    except ValueError:
        raise UsageError(f"there is no ack policy {given!r}; there are: {', '.join(AckPolicy)}") from None
