"""Parts common to databases with a server: connection pool, clock in statements, and hints for claims."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import Any

from sqlalchemy import URL, Engine, create_engine

from penstock.model.event import Delivery
from penstock.model.times import Clock
from penstock.store.api import StoreOptions
from penstock.store.sql.claim_hints import ALWAYS, KeyQueueLength, ScanFloor
from penstock.store.sql.dialect import ClaimTerms, Dialect
from penstock.store.sql.transaction import Transaction, percent_style

CONNECT_SECONDS = 10


class ServerDialect(Dialect):
    """Dialect of a database server, with transactions in READ COMMITTED."""

    _clock_now: str
    """SQL expression of the server's time."""
    _given_now: str
    """SQL expression of an injected clock's time, with the parameter `now`."""

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
        """Return the parameter `now` of an injected clock; empty if the server's clock is used."""
        return {} if self.clock is None else {"now": self.clock()}

    def _prepare(self, statement: str) -> str:
        prepared = self._prepared.get(statement)
        if prepared is None:
            prepared = self._prepared[statement] = percent_style(statement.replace("{now}", self._now))
        return prepared

    def _take_ready(self, tx: Transaction, terms: ClaimTerms, room: int) -> list[Delivery]:
        if terms.types is not None:
            return self._take_from(tx, terms, room, ALWAYS)
        floor = self._floors.setdefault(terms.lease.queue, ScanFloor())
        start = floor.use()
        rows = self._take_from(tx, terms, room, start)
        if start == ALWAYS and rows:
            floor.learn_all(terms.opened_at, *self._left(tx, terms.lease.queue))
        elif rows or room == terms.limit:
            floor.learn(terms.opened_at, rows)
        return rows

    @abstractmethod
    def _left(self, tx: Transaction, queue: str) -> tuple[int | None, datetime | None]:
        """Return the lowest `priority` and the earliest `available_at` of the events still pending after a claim."""

    def _ready(self, tx: Transaction, queue: str, types: Sequence[str] | None) -> bool:
        floor = ScanFloor() if types is not None else self._floors.setdefault(queue, ScanFloor())
        start = floor.use()
        found = self._ready_from(tx, queue, types, start)
        if found and start == ALWAYS:
            floor.forget()  # the event may be earlier than the floor: only a full scan finds it
        return found

    def scan_everything(self) -> None:
        for floor in self._floors.values():
            floor.forget()


def by_queue(keys: Iterable[tuple[str, str]]) -> Iterator[tuple[str, list[str]]]:
    """Yield each queue with its ordering keys, sorted and without duplicates."""
    for queue, of_queue in groupby(sorted(set(keys)), itemgetter(0)):
        yield queue, [key for _, key in of_queue]
