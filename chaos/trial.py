"""One trial: a stream from one source into one state store, all faults of a schedule, and the audit."""

import shutil
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from chaos.audit import Audit, Books, audit
from chaos.driver import Driver
from chaos.orders import Orders
from chaos.program import SUPERSEDED, USAGE, Settings
from chaos.schedule import Fault, Kill, KillAtRandom, Outage, Schedule, SecondDriver
from chaos.sources import OrderSource
from penstock.model.errors import PenstockError
from tests.support.files import write_whole
from tests.support.processes import wait_until
from tests.support.servers import PostgresServer

REACH_SECONDS = 120.0
PROGRESS_SECONDS = 120.0
DRAIN_SECONDS = 600.0
SUPERSEDE_SECONDS = 180.0
# A trial fails when the program has ended by itself this many times in a row without progress.
MOST_FAILURES = 5
LOOK_SECONDS = 0.1
RUNS = "stream_started"

Say = Callable[[str], None]


class TrialFailed(PenstockError):
    """The stream behaved in a way that no fault explains; the message describes the behaviour."""


class NotRun(PenstockError):
    """The stream can't run in this environment; the message gives the reason."""


@dataclass(slots=True)
class Tally:
    """Counts of the faults and starts of a trial."""

    kills: int = 0
    steps: Counter[int] = field(default_factory=Counter)
    """Number of kills at each step, by step number."""
    unreached: int = 0
    """Number of scheduled kills whose step was not reached in time."""
    starts: int = 0
    lost_checkpoints: int = 0
    superseded: int = 0
    outages: int = 0
    gave_up: Counter[str] = field(default_factory=Counter)
    """Last log lines of runs that ended without a kill. A supervisor would restart such a program too."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of a chaos trial."""

    audit: Audit
    tally: Tally
    events: int
    seconds: float

    @property
    def passed(self) -> bool:
        return self.audit.passed


class Trial:
    """A run of all faults of a schedule, with a portion of the orders emitted before each fault."""

    def __init__(
        self,
        source: OrderSource,
        settings: Settings,
        orders: Orders,
        schedule: Schedule,
        postgres: PostgresServer,
        folder: Path,
        say: Say = lambda _: None,
    ) -> None:
        self.tally = Tally()
        self._source = source
        self._settings = replace(settings, source=source.named)
        self._orders = orders
        self._schedule = schedule
        self._postgres = postgres
        self._folder = folder
        self._say = say
        self._plan = folder / "plan.txt"
        self._checkpoint = folder / "checkpoint"
        self._books = Books(settings.store)
        self._drivers: list[Driver] = []
        self._failures = 0

    def run(self) -> Verdict:
        """Apply all faults, wait until all orders are done, run once more without a checkpoint, and audit."""
        began = time.monotonic()
        try:
            self._start()
            self._suffer()
            self._emit(self._orders.left)
            self._drain()
            self._once_more()
        finally:
            for driver in self._drivers:
                driver.end()
        found = audit(self._orders, self._settings.store, self._settings.state)
        return Verdict(found, self.tally, len(self._orders.all), time.monotonic() - began)

    def _suffer(self) -> None:
        faults = self._schedule.faults
        portion = len(self._orders.all) // (len(faults) + 2) or 1
        for place, fault in enumerate(faults, 1):
            self._emit(portion)
            self._say(f"{place}/{len(faults)} {fault} ({self._done():,} of {len(self._orders.all):,} orders done)")
            self._do(fault)

    def _do(self, fault: Fault) -> None:
        match fault:
            case Kill():
                self._kill(fault)
            case KillAtRandom():
                self._kill_at_random(fault)
            case SecondDriver():
                self._supersede()
            case Outage():
                self._outage(fault)

    def _kill(self, fault: Kill) -> None:
        before = self._books.done()
        fired = self._plan.with_name("plan.txt.fired")
        fired.unlink(missing_ok=True)
        write_whole(self._plan, fault.crash)
        self._await(fired.exists, REACH_SECONDS)
        self._plan.unlink(missing_ok=True)
        if not fired.exists():
            self.tally.unreached += 1
            return
        self.tally.kills += 1
        self.tally.steps[fault.step.number] += 1
        if fault.ends_driver:
            wait_until(lambda: not self._driver.running, PROGRESS_SECONDS)
            self._start()  # while tasks of the dead driver may still be running
        else:
            self._await_progress(before)

    def _kill_at_random(self, fault: KillAtRandom) -> None:
        before = self._books.done()
        time.sleep(fault.after_seconds)
        processes = self._driver.processes()
        if fault.victim != "everything" and processes:
            processes = [processes[int(fault.chance * len(processes))]]
        self._driver.kill(*processes)
        self.tally.kills += 1
        if self._driver.pid in processes:
            wait_until(lambda: not self._driver.running, PROGRESS_SECONDS)
        self._await_progress(before)

    def _supersede(self) -> None:
        # Start the second driver only when the first one runs; otherwise the first could take the newer epoch.
        self._await(lambda: self._driver.running and RUNS in self._driver.said, SUPERSEDE_SECONDS)
        older = self._driver
        self._start(checkpoint=self._folder / f"checkpoint-{len(self._drivers)}")
        newer = self._driver
        wait_until(lambda: RUNS in newer.said or not newer.running, SUPERSEDE_SECONDS)
        deadline = time.monotonic() + SUPERSEDE_SECONDS
        while older.running and time.monotonic() < deadline:
            self._emit(1)  # a superseded driver ends when it next has work
            time.sleep(LOOK_SECONDS * 5)
        if older.running:
            raise TrialFailed(f"a superseded driver did not exit; see {older.log}")
        if older.status != SUPERSEDED or "another driver has started" not in older.said:
            raise TrialFailed(f"a superseded driver exited with status {older.status} and no reason; see {older.log}")
        self.tally.superseded += 1

    def _outage(self, fault: Outage) -> None:
        self.tally.outages += 1
        if fault.crash:
            self._postgres.kill()
            self._postgres.start()
        else:
            self._postgres.freeze()
            time.sleep(fault.seconds)
            self._postgres.thaw()
        self._await_progress(self._books.done())

    @property
    def _driver(self) -> Driver:
        return self._drivers[-1]

    def _start(self, checkpoint: Path | None = None, *, once: bool = False) -> Driver:
        how = self._schedule.next_start()
        folder = checkpoint or self._checkpoint
        if how.loses_checkpoint and folder.exists():
            shutil.rmtree(folder, ignore_errors=True)
            self.tally.lost_checkpoints += 1
            # Use another folder: tasks of a dead driver may still write to the old one, leaving half a checkpoint.
            folder = self._checkpoint = self._folder / f"checkpoint-after-loss-{self.tally.lost_checkpoints}"
        self.tally.starts += 1
        settings = replace(self._settings, cores=how.cores, checkpoint=str(folder), once=once)
        self._drivers.append(Driver(settings, self._folder / f"driver-{self.tally.starts}.log", self._plan))
        return self._driver

    def _emit(self, count: int) -> None:
        if orders := self._orders.portion(count):
            self._source.emit(orders)

    def _await_progress(self, before: int) -> None:
        """Wait until another order is done: repeated kills at the same events would make them look poisonous."""
        if self._await(lambda: self._done() > before, PROGRESS_SECONDS):
            self._failures = 0

    def _await(self, holds: Callable[[], bool], seconds: float) -> bool:
        """Wait for a condition and restart the program whenever it has ended. Return False after the time-out."""
        deadline = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > deadline:
                return False
            if not self._driver.running:
                self._note_end()
                self._start()
            time.sleep(LOOK_SECONDS)
        return True

    def _note_end(self) -> None:
        """Record the reason if the program ended by itself. Raise if it can't run here or ends again and again."""
        status = self._driver.status
        if status is not None and status < 0:
            return
        lines = self._driver.said.strip().splitlines()
        if status == USAGE:
            raise NotRun(lines[-1])
        self.tally.gave_up[lines[-1] if lines else f"status {status}"] += 1
        self._failures += 1
        if self._failures >= MOST_FAILURES:
            raise TrialFailed(f"the program exits by itself repeatedly; see {self._driver.log}: {lines[-1:]}")

    def _done(self) -> int:
        with suppress(Exception):  # the database may be down just now
            return self._books.done()
        return -1

    def _drain(self) -> None:
        wanted = len(self._orders.all)
        self._say(
            f"all faults done; waiting for the remaining orders ({self._books.done():,} of {wanted:,} orders done)"
        )

        def drained() -> bool:
            return self._done() >= wanted and not self._books.live() and not self._source.unacknowledged()

        self._await(drained, DRAIN_SECONDS)
        self._driver.end()

    def _once_more(self) -> None:
        """Run once more without a checkpoint: events without an acknowledgement return and must change nothing."""
        driver = self._start(self._folder / "checkpoint-last", once=True)
        if not wait_until(lambda: not driver.running, DRAIN_SECONDS) or driver.status != 0:
            raise TrialFailed(f"the last run did not finish; see {driver.log}")
