"""Leases, and the results of the operations that open or end one: claims and settlements."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NewType
from uuid import UUID

from penstock.model.event import Delivery

LeaseId = NewType("LeaseId", UUID)
Token = NewType("Token", UUID)
DEFAULT_LEASE_SECONDS = 60.0
DEFAULT_MAX_LEASE_AGE_SECONDS = 3_600.0


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to settle claimed events, valid while its token is the newest of the lease."""

    lease_id: LeaseId
    token: Token
    queue: str
    lease_seconds: float = DEFAULT_LEASE_SECONDS


@dataclass(frozen=True, slots=True)
class Held:
    """An open lease with its current token, and its latest claimant."""

    lease: Lease
    claimant: str


@dataclass(frozen=True, slots=True)
class Claim:
    """Result of a claim. `repeated` is true if the lease was known; `events` are then the unsettled events of the
    lease."""

    lease: Lease
    events: Sequence[Delivery]
    repeated: bool = False

    def __bool__(self) -> bool:
        return bool(self.events)

    def __len__(self) -> int:
        return len(self.events)


@dataclass(frozen=True, slots=True)
class Settlement:
    """Result of a settle, by seq: applied now, settled before under this lease, or no longer claimed under it."""

    published: frozenset[int] = frozenset()
    retried: frozenset[int] = frozenset()
    dead: frozenset[int] = frozenset()
    released: frozenset[int] = frozenset()
    already_settled: frozenset[int] = frozenset()
    lost: frozenset[int] = frozenset()

    @property
    def applied(self) -> int:
        return len(self.published) + len(self.retried) + len(self.dead) + len(self.released)
