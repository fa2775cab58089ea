"""Leases, and the results of the verbs that take or end one: claims and settlements."""

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
    """The right to settle what was claimed under it, for as long as its token is the newest."""

    lease_id: LeaseId
    token: Token
    queue: str
    lease_seconds: float = DEFAULT_LEASE_SECONDS


@dataclass(frozen=True, slots=True)
class Held:
    """An open lease with the token that counts now, and who claimed under it last."""

    lease: Lease
    claimant: str


@dataclass(frozen=True, slots=True)
class Claim:
    """What a claim brought. `repeated` says that the lease was known and this is its unsettled remainder."""

    lease: Lease
    events: Sequence[Delivery]
    repeated: bool = False

    def __bool__(self) -> bool:
        return bool(self.events)

    def __len__(self) -> int:
        return len(self.events)


@dataclass(frozen=True, slots=True)
class Settlement:
    """What a settle did, by seq: applied now, applied before by the same lease, or no longer ours."""

    published: frozenset[int] = frozenset()
    retried: frozenset[int] = frozenset()
    dead: frozenset[int] = frozenset()
    released: frozenset[int] = frozenset()
    already_settled: frozenset[int] = frozenset()
    lost: frozenset[int] = frozenset()

    @property
    def applied(self) -> int:
        return len(self.published) + len(self.retried) + len(self.dead) + len(self.released)
