"""All trials of a run, one after the other: one for each pair of source and state store, each in a new folder."""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from chaos.audit import STATES, Books
from chaos.orders import Orders
from chaos.program import Settings
from chaos.schedule import Schedule
from chaos.sources import SOURCES, SourceServers
from chaos.trial import NotRun, Say, Trial, TrialFailed, Verdict
from penstock.model.errors import PenstockError
from penstock.outbox import connect
from tests.support.servers import PostgresServer


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The sources and state stores to try, and the seed, kills and events of each trial."""

    seed: int
    kills: int = 200
    events: int = 100_000
    sources: Sequence[str] = SOURCES
    states: Sequence[str] = STATES


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one pair of source and state store."""

    source: str
    state: str
    verdict: Verdict | None = None
    not_run: str = ""
    """Reason why the trial could not run here."""
    failure: str = ""
    """Reason why the trial ended before its audit."""
    folder: str = ""
    """Folder of a failed trial, kept for inspection."""

    @property
    def passed(self) -> bool:
        return self.verdict is not None and self.verdict.passed


class Campaign:
    """The trials of a plan, on servers that are started for the campaign and stopped afterwards."""

    def __init__(self, plan: Plan, postgres: PostgresServer, say: Say) -> None:
        self._plan = plan
        self._postgres = postgres
        self._servers = SourceServers(postgres)
        self._say = say

    @classmethod
    @contextmanager
    def over(cls, plan: Plan, say: Say) -> Iterator["Campaign"]:
        """Open a campaign with a new PostgreSQL server."""
        with PostgresServer(fsync=False) as postgres, closing(cls(plan, postgres, say)) as campaign:
            yield campaign

    def close(self) -> None:
        self._servers.close()

    def run(self) -> Iterator[Outcome]:
        """Run the trials one after the other and yield their outcomes."""
        for source, state in product(self._plan.sources, self._plan.states):
            self._say(f"{source} into {state}")
            yield self.attempt(source, state)

    def attempt(self, source: str, state: str) -> Outcome:
        """Run one trial in a new folder, which is kept if the trial fails."""
        folder = Path(tempfile.mkdtemp(prefix=f"chaos-{source}-{state}-"))
        store = self._postgres.create_database()
        outcome = Outcome(source, state, folder=str(folder))
        try:
            outcome = self._try(outcome, store, folder)
        except KeyboardInterrupt:
            shutil.rmtree(folder)
            raise
        if outcome.passed or outcome.not_run:
            shutil.rmtree(folder)
        else:
            Books(store).dump(folder)
        self._postgres.drop_database(store)
        return outcome

    def _try(self, outcome: Outcome, store: str, folder: Path) -> Outcome:
        source, state = outcome.source, outcome.state
        with ExitStack() as stack:
            try:
                trial = self._prepare(source, state, store, folder, stack)
            except PenstockError as error:
                return Outcome(source, state, not_run=str(error))
            try:
                verdict = trial.run()
            except NotRun as error:
                return Outcome(source, state, not_run=str(error))
            except TrialFailed as error:
                return Outcome(source, state, failure=str(error), folder=outcome.folder)
        return Outcome(source, state, verdict, folder="" if verdict.passed else outcome.folder)

    def _prepare(self, source: str, state: str, store: str, folder: Path, stack: ExitStack) -> Trial:
        with connect(store) as outbox:
            outbox.store.initialise()
        at = store if state == "postgresql" else f"{state}:///{folder / 'state'}"
        settings = Settings(store=store, state=at)
        found = stack.enter_context(self._servers.source(source, store, folder))
        orders, schedule = Orders(self._plan.events, self._plan.seed), Schedule(self._plan.kills, self._plan.seed)
        return Trial(found, settings, orders, schedule, self._postgres, folder, self._say)
