"""Retry policies: whether and when to retry a failed event. Pure: the caller supplies the random numbers."""

from dataclasses import dataclass
from typing import Literal

from penstock.model.errors import require
from penstock.model.event import LONGEST_SECONDS
from penstock.model.lifecycle import DEFAULT_MAX_ATTEMPTS
from penstock.model.outcome import Dead, Retry

Shape = Literal["none", "constant", "linear", "exponential"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Growth of the retry delay, and the limits after which an event becomes DEAD.

    All limits except `max_attempts` are optional; the first limit reached is final. `jitter` is the share of the delay
    that may be randomly subtracted, from 0 to 1. With the defaults an event survives an outage of up to 13 h, and of
    6.6 h on average: 24 delays that grow from 1 s to 1 h, each with full jitter.
    """

    shape: Shape = "exponential"
    initial_seconds: float = 1.0
    factor: float = 2.0
    cap_seconds: float = 3_600.0
    jitter: float = 1.0
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    max_total_delay_seconds: float | None = None
    max_age_seconds: float | None = None

    def __post_init__(self) -> None:
        require(self.initial_seconds >= 0, f"initial_seconds must be at least 0, got {self.initial_seconds}")
        require(self.factor >= 1, f"factor must be at least 1, got {self.factor}")
        require(self.cap_seconds >= 0, f"cap_seconds must be at least 0, got {self.cap_seconds}")
        require(0 <= self.jitter <= 1, f"jitter must be between 0 and 1, got {self.jitter}")
        require(self.max_attempts >= 1, f"max_attempts must be at least 1, got {self.max_attempts}")
        for name in ("max_total_delay_seconds", "max_age_seconds"):
            limit = getattr(self, name)
            require(limit is None or limit >= 0, f"{name} must be at least 0, got {limit}")

    @classmethod
    def none(cls) -> "RetryPolicy":
        """Return a policy without retries: the first failure is final."""
        return cls(shape="none", max_attempts=1)

    @classmethod
    def constant(
        cls, seconds: float, *, jitter: float = 0.0, max_attempts: int = DEFAULT_MAX_ATTEMPTS
    ) -> "RetryPolicy":
        return cls(shape="constant", initial_seconds=seconds, jitter=jitter, max_attempts=max_attempts)

    @classmethod
    def linear(cls, seconds: float, *, jitter: float = 0.0, max_attempts: int = DEFAULT_MAX_ATTEMPTS) -> "RetryPolicy":
        return cls(shape="linear", initial_seconds=seconds, jitter=jitter, max_attempts=max_attempts)

    def base_delay(self, attempt: int) -> float:
        """Return the delay in seconds after failure number `attempt` (from 1), before jitter."""
        if self.initial_seconds == 0:
            return 0.0
        try:
            return min(self._grown(attempt), self.cap_seconds)
        except OverflowError:
            return self.cap_seconds

    def _grown(self, attempt: int) -> float:
        match self.shape:
            case "none":
                return 0.0
            case "constant":
                return self.initial_seconds
            case "linear":
                return self.initial_seconds * attempt
            case "exponential":
                return self.initial_seconds * self.factor ** (attempt - 1)

    def delay(self, attempt: int, roll: float) -> float:
        """Return the delay in seconds after failure number `attempt`; `roll`, a random number in [0, 1), sets the
        jitter."""
        return self.base_delay(attempt) * (1 - self.jitter * roll)

    def decide(
        self,
        error: str,
        *,
        attempts: int,
        age_seconds: float,
        roll: float,
        event_max_attempts: int | None = None,
        asked_delay: float | None = None,
    ) -> Retry | Dead:
        """Decide between a retry and death for an event that has failed `attempts` times before this failure."""
        attempt = attempts + 1
        if self.shape == "none" or attempt >= (event_max_attempts or self.max_attempts):
            return Dead(error)
        # Use at least the policy's delay: a destination that always asks for 1 s would exhaust ten attempts in ten
        # seconds.
        wait = max(self.delay(attempt, roll), asked_delay or 0.0)
        if self.max_age_seconds is not None and age_seconds + wait > self.max_age_seconds:
            return Dead(f"{error} (gave up: older than {self.max_age_seconds:g} s)")
        if self.max_total_delay_seconds is not None and self._waits_longer(attempt, self.max_total_delay_seconds):
            return Dead(f"{error} (gave up: waited {self.max_total_delay_seconds:g} s in all)")
        return Retry(error, wait)

    def _waits_longer(self, attempt: int, seconds: float) -> bool:
        """Return whether the delays after failures 1 to `attempt`, without jitter, add up to more than `seconds`."""
        waited = 0.0
        for number in range(1, attempt + 1):
            wait = self.base_delay(number)
            if wait == self.base_delay(attempt):  # all later delays are equal
                return wait > 0 and attempt - number + 1 > (seconds - waited) / wait
            waited += wait
            if waited > seconds:
                return True
        return waited > seconds


DEFAULT_RETRY_SECONDS = 1.0


def wait_seconds(delay: float | None) -> float:
    """Return the delay in seconds, with a default for None. The limit of 100 years keeps the due date valid."""
    if delay is None:
        return DEFAULT_RETRY_SECONDS
    return float(min(delay, LONGEST_SECONDS)) if delay > 0 else 0.0
