"""What the databases with a server share: a pool of connections, a clock in the statements, and hints for claims."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from typing import Any

from sqlalchemy import URL, Engine, create_engine

from penstock.model.times import Clock
from penstock.store.api import StoreOptions
from penstock.store.sql.claim_hints import KeyQueueLength, ScanFloor
from penstock.store.sql.dialect import Dialect
from penstock.store.sql.transaction import percent_style

CONNECT_SECONDS = 10


class ServerDialect(Dialect):
    """A dialect whose statements run on a server, in READ COMMITTED."""

    _clock_now: str
    """The server's time in a statement."""
    _given_now: str
    """The time of an injected clock in a statement."""

    def __init__(self, url: str, options: StoreOptions, clock: Clock | None = None) -> None:
        super().__init__(url, options, clock)
        self._floors: dict[str, ScanFloor] = {}
        self._key_queues: dict[str, KeyQueueLength] = {}
        self._now = self._clock_now if clock is None else self._given_now
        self._prepared: dict[str, str] = {}

    def _create_pool(self, target: URL, connect_args: Mapping[str, Any], **pool: Any) -> Engine:
        patience = {} if "connect_timeout" in target.query else {"connect_timeout": CONNECT_SECONDS}
        return create_engine(
            target,
            isolation_level="READ COMMITTED",
            pool_size=self.options.pool_size,
            max_overflow=10,
            connect_args={**connect_args, **patience},
            **pool,
        )

    def _time_given(self) -> dict[str, Any]:
        """The parameter of a statement that takes its time from an injected clock."""
        return {} if self.clock is None else {"now": self.clock()}

    def _prepare(self, statement: str) -> str:
        prepared = self._prepared.get(statement)
        if prepared is None:
            prepared = self._prepared[statement] = percent_style(statement.replace("{now}", self._now))
        return prepared

    def _forget_scan_floor(self) -> None:
        for floor in self._floors.values():
            floor.forget()


def by_queue(keys: Iterable[tuple[str, str]]) -> Iterator[tuple[str, list[str]]]:
    """Yield each queue with its ordering keys: sorted, and each once."""
    for queue, of_queue in groupby(sorted(set(keys)), itemgetter(0)):
        yield queue, [key for _, key in of_queue]
