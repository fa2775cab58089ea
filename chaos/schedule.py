"""Schedule of the faults of a trial, identical for equal seeds. Values only, no I/O."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice

from chaos.steps import DRIVER, STEPS, TASK, Step

# A task runs hundreds of handlers. The kill comes after a random one of the first LAST_HANDLER.
HANDLED = "stream-handled"
LAST_HANDLER = 30
# One kill in this many hits a driver, because a driver takes seconds to restart and a task much less.
ONE_DRIVER_IN = 10
FEWEST_DRIVERS = 2
ONE_AT_RANDOM_IN = 8
ONE_OTHER_IN = 50
CORES = (1, 2, 3)


@dataclass(frozen=True, slots=True)
class Kill:
    """Kill at a step of the protocol: of a task, of the driver, or of the driver with the JVM and all tasks."""

    step: Step
    victim: str
    passage: int = 1

    @property
    def crash(self) -> str:
        """The kill in the syntax of the crash simulator, `tests.support.crashes`."""
        return f"{self.step.point}:{self.passage}:{self.victim}"

    @property
    def ends_driver(self) -> bool:
        return self.victim != "self" or self.step.where == DRIVER

    def __str__(self) -> str:
        who = {"self": self.step.where, "driver": "driver", "family": "everything"}[self.victim]
        return f"kill {who} at step {self.step.number}: {self.step.what}"


@dataclass(frozen=True, slots=True)
class KillAtRandom:
    """Kill of one process of the stream, or of all, at a random time."""

    after_seconds: float
    victim: str
    chance: float
    """Position of the process to kill in the list of processes, from 0 to 1."""

    def __str__(self) -> str:
        return f"kill {self.victim} after {self.after_seconds:.1f} s"


@dataclass(frozen=True, slots=True)
class SecondDriver:
    """Start of another driver while the first one runs. The first must report `Superseded` and end."""

    def __str__(self) -> str:
        return "start a second driver"


@dataclass(frozen=True, slots=True)
class Outage:
    """Outage of PostgreSQL, which holds the queues and possibly the state: a hang, or a crash and restart."""

    seconds: float
    crash: bool

    def __str__(self) -> str:
        return f"PostgreSQL {'crashes' if self.crash else f'hangs for {self.seconds:.1f} s'}"


Fault = Kill | KillAtRandom | SecondDriver | Outage


@dataclass(frozen=True, slots=True)
class Start:
    """Conditions of the next start of the driver."""

    cores: int
    loses_checkpoint: bool


class Schedule:
    """The faults in random order, and the conditions of each start of the driver."""

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
        """Yield kills at all steps in rotation from a random step, alternately of the driver and of all processes."""
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
        # Mostly single processes: usually a task, which restarts quickly.
        victim = self._chance.choices(("a process", "everything"), (9, 1))[0]
        return KillAtRandom(self._chance.uniform(0, 1), victim, self._chance.random())

    def _from_anywhere(self, steps: list[Step]) -> list[Step]:
        first = self._chance.randrange(len(steps))
        return steps[first:] + steps[:first]
