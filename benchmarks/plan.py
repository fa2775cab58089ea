"""How much the benchmarks measure, and what a measurement gives: figures beside their targets. Values only."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

PAYLOAD = bytes(range(200))
EVENT_TYPE = "bench.event"
EVENTS = 500_000
WARM_UP = 50_000


class Part(StrEnum):
    """What can be measured by itself."""

    EMIT = "emit"
    CLAIMS = "claims"
    THROUGHPUT = "throughput"
    LATENCY = "latency"
    COLD_START = "cold-start"
    ORDER = "order"
    BROKERS = "brokers"
    WORKERS = "workers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The sizes of it all. Rates are measured `rounds` times, contenders in turn, and their medians count."""

    events: int = EVENTS
    warm_up: int = WARM_UP
    rounds: int = 3
    tasks: int = 2
    batch: int = 2_000
    tries: int = 40_000
    """Jobs for each setting that PgQueuer is tried with, before it is measured with its best."""
    latency_events: int = 600
    latency_per_second: float = 20.0
    cold_starts: int = 5
    few_pending: int = 100_000
    many_pending: int = 5_000_000
    claims: int = 60


@dataclass(frozen=True, slots=True)
class Target:
    """What a figure is to reach."""

    limit: float
    at_least: bool = True

    def reached(self, value: float) -> bool:
        return value >= self.limit if self.at_least else value <= self.limit


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value."""

    name: str
    value: float
    unit: str
    target: Target | None = None

    @property
    def reached(self) -> bool | None:
        return None if self.target is None else self.target.reached(self.value)


@dataclass(frozen=True, slots=True)
class Measured:
    """What a part gave: its figures, and what they were made from."""

    figures: tuple[Figure, ...]
    details: dict[str, Any]


def at_least(limit: float) -> Target:
    return Target(limit)


def at_most(limit: float) -> Target:
    return Target(limit, at_least=False)
