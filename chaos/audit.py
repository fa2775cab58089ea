"""Audit of a trial: compare the stream's result with the expected one, reading files and tables with separate code."""

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos.orders import Orders, Sums
from chaos.program import COUNTED, STREAM
from chaos.sources import ORDERS

STATES = ("sqlite", "rocksdb", "postgresql")
SHOWN = 10
OWN_QUEUE = f"streams/{STREAM}"
# Prefix of the stream's internal state keys, such as those of the failure counts and the watermark.
OWN_KEYS = "\x01"

COUNTED_EVENTS = """
    SELECT e.payload FROM penstock_events e
    WHERE e.seq IN (SELECT seq FROM penstock_pending WHERE queue = %(queue)s
                    UNION SELECT seq FROM penstock_claimed WHERE queue = %(queue)s
                    UNION SELECT seq FROM penstock_archive WHERE queue = %(queue)s)
"""
DEAD_EVENTS = """
    SELECT e.payload FROM penstock_events e JOIN penstock_archive a USING (seq)
    WHERE a.queue = ANY(%(queues)s) AND a.state = 'DEAD'
"""
LIVE = """
    SELECT (SELECT count(*) FROM penstock_pending WHERE queue = ANY(%(queues)s))
         + (SELECT count(*) FROM penstock_claimed WHERE queue = ANY(%(queues)s))
"""
DONE = """
    SELECT (SELECT count(*) FROM penstock_pending WHERE queue = %(counted)s)
         + (SELECT count(*) FROM penstock_archive WHERE queue = ANY(%(queues)s) AND state = 'DEAD')
"""


@dataclass(frozen=True, slots=True)
class Audit:
    """Differences between the result and the expected one; all empty if the stream was exactly-once."""

    lost: list[int] = field(default_factory=list)
    """Numbers of the orders that lack their emitted event."""
    doubled: list[int] = field(default_factory=list)
    """Numbers of the orders with more than one emitted event or dead letter, or with one of each."""
    wrong_sums: dict[str, tuple[Sums | None, Sums | None]] = field(default_factory=dict)
    """Found and expected state of the keys where the two differ."""
    missing_dead: list[int] = field(default_factory=list)
    wrongly_dead: list[int] = field(default_factory=list)
    unfinished: int = 0
    """Number of unsettled events in the queues of the stream."""

    @property
    def passed(self) -> bool:
        return self == Audit()

    def lines(self) -> Iterator[str]:
        """Yield the differences as text."""
        for name in ("lost", "doubled", "missing_dead", "wrongly_dead"):
            if numbers := getattr(self, name):
                yield f"{name.replace('_', ' ')}: {len(numbers)} orders, such as {numbers[:SHOWN]}"
        for key, (found, wanted) in list(self.wrong_sums.items())[:SHOWN]:
            yield f"wrong sum of {key!r}: expected {wanted}, got {found}"
        if self.unfinished:
            yield f"unfinished: {self.unfinished} events"


class Books:
    """Queries of the database that holds the queues, independent of Penstock's SQL."""

    def __init__(self, store: str) -> None:
        self._url = store

    def live(self) -> int:
        """Return the number of unsettled events of the stream."""
        return int(self._value(LIVE, queues=[ORDERS, OWN_QUEUE]))

    def done(self) -> int:
        """Return the number of finished orders: emitted events plus dead letters."""
        return int(self._value(DONE, counted=COUNTED, queues=[ORDERS, OWN_QUEUE]))

    def counted(self) -> Counter[int]:
        return Counter(_numbers(self._rows(COUNTED_EVENTS, queue=COUNTED)))

    def dead(self) -> Counter[int]:
        return Counter(_numbers(self._rows(DEAD_EVENTS, queues=[ORDERS, OWN_QUEUE])))

    def dump(self, folder: Path) -> None:
        """Write all events, history and leases to files, for the analysis of a failure."""
        for table in ("penstock_outbox", "penstock_history", "penstock_leases"):
            rows = self._rows(f"SELECT to_jsonb(t)::text FROM {table} t")
            (folder / f"{table}.jsonl").write_text("".join(f"{row}\n" for (row,) in rows))

    def _value(self, statement: str, **values: Any) -> Any:
        ((value,),) = self._rows(statement, **values)
        return value

    def _rows(self, statement: str, **values: Any) -> list[tuple[Any, ...]]:
        import psycopg

        with psycopg.connect(self._url, connect_timeout=10) as connection:
            return connection.execute(statement.encode(), values or None).fetchall()


def audit(orders: Orders, store: str, state: str) -> Audit:
    """Compare the queues and the state with the expected result of the orders."""
    books = Books(store)
    counted, dead = books.counted(), books.dead()
    found, wanted = state_of(state), orders.sums()
    wrong = sorted(key for key in found.keys() | wanted.keys() if found.get(key) != wanted.get(key))
    return Audit(
        lost=sorted(orders.counted - counted.keys()),
        doubled=sorted(number for number, times in (counted + dead).items() if times > 1),
        wrong_sums={key: (found.get(key), wanted.get(key)) for key in wrong},
        missing_dead=sorted(orders.dead - dead.keys()),
        wrongly_dead=sorted(dead.keys() - orders.dead),
        unfinished=books.live(),
    )


def state_of(url: str) -> Mapping[str, Sums]:
    """Return the state by key, read directly from the files or tables of the state store."""
    scheme, _, place = url.partition("://")
    folder = Path(place[1:]) / STREAM
    readers = {"sqlite": _sqlite, "rocksdb": _rocksdb}
    pairs = readers[scheme](folder) if scheme in readers else _postgresql(url)
    documents = {key: json.loads(data) for key, data in pairs if not key.startswith(OWN_KEYS)}
    return {key: Sums(found["count"], found["sum"]) for key, found in documents.items()}


def _sqlite(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.glob("part-*.db")):
        with closing(sqlite3.connect(path)) as database:
            yield from database.execute("SELECT key, data FROM state")


def _rocksdb(folder: Path) -> Iterator[tuple[str, bytes]]:
    from rocksdict import AccessType, Options, Rdict

    for path in sorted(folder.glob("part-*.rocks")):
        with closing(Rdict(str(path), Options(raw_mode=True), access_type=AccessType.read_only())) as database:
            for key, value in database.items():
                if isinstance(key, bytes) and key.startswith(b"s"):
                    yield key[1:].decode(), value[8:]


def _postgresql(url: str) -> Iterator[tuple[str, bytes]]:
    import psycopg

    with psycopg.connect(url) as connection:
        yield from connection.execute("SELECT key, data FROM penstock_stream_state WHERE stream = %s", (STREAM,))


def _numbers(rows: Iterable[tuple[Any, ...]]) -> Iterator[int]:
    return (json.loads(payload)["number"] for (payload,) in rows)
