"""Sizes of the benchmarks, and their results: figures and targets. Values only."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

PAYLOAD = bytes(range(200))
EVENT_TYPE = "bench.event"
EVENTS = 500_000
WARM_UP = 50_000


class Part(StrEnum):
    """A benchmark that can be run separately."""

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
    """Sizes of all benchmarks. Rates are measured in `rounds` in which the contenders alternate; the medians count."""

    events: int = EVENTS
    warm_up: int = WARM_UP
    rounds: int = 3
    tasks: int = 2
    batch: int = 2_000
    tries: int = 40_000
    """Events or jobs per trial run. Trial runs find the fastest setting of a contender before the measurement."""
    latency_events: int = 600
    latency_per_second: float = 20.0
    cold_starts: int = 5
    few_pending: int = 100_000
    many_pending: int = 5_000_000
    claims: int = 60


@dataclass(frozen=True, slots=True)
class Target:
    """Limit that a figure must reach."""

    limit: float
    at_least: bool = True

    def reached(self, value: float) -> bool:
        return value >= self.limit if self.at_least else value <= self.limit


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured value with its target."""

    name: str
    value: float
    unit: str
    target: Target | None = None

    @property
    def reached(self) -> bool | None:
        return None if self.target is None else self.target.reached(self.value)


@dataclass(frozen=True, slots=True)
class Measured:
    """Result of a part: figures, and the data behind them."""

    figures: tuple[Figure, ...]
    details: dict[str, Any]


def at_least(limit: float) -> Target:
    return Target(limit)


def at_most(limit: float) -> Target:
    return Target(limit, at_least=False)
