"""What is done to a stream, and when: the same for the same seed. Values only."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice

from chaos.steps import DRIVER, STEPS, TASK, Step

# Handlers run by the hundred in a task: which of them is the last, chance says.
HANDLED = "stream-handled"
LAST_HANDLER = 30
# A killed driver takes seconds to come back, a killed task a moment: of so many kills one is of a driver.
ONE_DRIVER_IN = 10
FEWEST_DRIVERS = 2
ONE_AT_RANDOM_IN = 8
ONE_OTHER_IN = 50
CORES = (1, 2, 3)


@dataclass(frozen=True, slots=True)
class Kill:
    """At a step of the protocol, a task, the driver, or the driver with Java and all tasks."""

    step: Step
    victim: str
    passage: int = 1

    @property
    def crash(self) -> str:
        """As the crash simulator takes it."""
        return f"{self.step.point}:{self.passage}:{self.victim}"

    @property
    def ends_driver(self) -> bool:
        return self.victim != "self" or self.step.where == DRIVER

    def __str__(self) -> str:
        who = {"self": self.step.where, "driver": "driver", "family": "everything"}[self.victim]
        return f"kill {who} at step {self.step.number}: {self.step.what}"


@dataclass(frozen=True, slots=True)
class KillAtRandom:
    """Some process of the stream, or all, whatever it does just then."""

    after_seconds: float
    victim: str
    chance: float
    """Which of the processes, as a share of them all."""

    def __str__(self) -> str:
        return f"kill {self.victim} after {self.after_seconds:.1f} s"


@dataclass(frozen=True, slots=True)
class SecondDriver:
    """Another driver starts while the first one runs, which must say so and end."""

    def __str__(self) -> str:
        return "start a second driver"


@dataclass(frozen=True, slots=True)
class Outage:
    """PostgreSQL, with the queues and maybe the state, hangs for a while, or crashes and starts again."""

    seconds: float
    crash: bool

    def __str__(self) -> str:
        return f"PostgreSQL {'crashes' if self.crash else f'hangs for {self.seconds:.1f} s'}"


Fault = Kill | KillAtRandom | SecondDriver | Outage


@dataclass(frozen=True, slots=True)
class Start:
    """How the next driver comes up."""

    cores: int
    loses_checkpoint: bool


class Schedule:
    """The faults, and how a driver comes back after each."""

    def __init__(self, kills: int, seed: int) -> None:
        self._chance = random.Random(seed)
        self.faults = self._faults(kills)

    def next_start(self) -> Start:
        return Start(self._chance.choice(CORES), self._chance.random() < 0.5)

    def _faults(self, kills: int) -> list[Fault]:
        drivers = min(kills, max(FEWEST_DRIVERS, kills // ONE_DRIVER_IN))
        at_random = (kills - drivers) // ONE_AT_RANDOM_IN
        others = max(1, kills // ONE_OTHER_IN) if kills else 0
        faults: list[Fault] = [
            *islice(self._driver_kills(), drivers),
            *islice(self._task_kills(), kills - drivers - at_random),
            *(self._at_random() for _ in range(at_random)),
            *(SecondDriver() for _ in range(others)),
            *(Outage(self._chance.uniform(1, 3), crash=place % 2 == 0) for place in range(others + 1)),
        ]
        self._chance.shuffle(faults)
        return faults

    def _driver_kills(self) -> Iterator[Kill]:
        """At every step, by turns alone and with all else. From where a few of them begin, chance says."""
        steps = self._from_anywhere([*STEPS])
        return (
            self._kill(step, victim) for step, victim in zip(cycle(steps), cycle(("driver", "family")), strict=False)
        )

    def _task_kills(self) -> Iterator[Kill]:
        steps = self._from_anywhere([step for step in STEPS if step.where == TASK])
        return (self._kill(step, "self") for step in cycle(steps))

    def _kill(self, step: Step, victim: str) -> Kill:
        return Kill(step, victim, self._chance.randint(1, LAST_HANDLER) if step.point == HANDLED else 1)

    def _at_random(self) -> KillAtRandom:
        # Mostly tasks, which are cheap.
        victim = self._chance.choices(("a process", "everything"), (9, 1))[0]
        return KillAtRandom(self._chance.uniform(0, 1), victim, self._chance.random())

    def _from_anywhere(self, steps: list[Step]) -> list[Step]:
        first = self._chance.randrange(len(steps))
        return steps[first:] + steps[:first]
