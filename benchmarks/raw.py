"""Raw moves: the throughput of PostgreSQL if no process reads the events.

The relay's statements for claim and settle move batches of events from pending through claimed to the archive. As in
the relay, each statement is committed separately. No lease is opened, no payload is read and nothing is published. The
result is the upper limit for a relay on this server.
"""

import sys
from uuid import uuid4

import psycopg

from benchmarks.workers import run_together, wait_for_start
from penstock.model.event import DEFAULT_QUEUE
from penstock.model.lease import Lease, LeaseId, Token
from penstock.store.sql.claim_hints import ALWAYS
from penstock.store.sql.dialect import ClaimTerms
from penstock.store.sql.postgres import statements
from penstock.store.sql.transaction import percent_style

_MOVE = statements.TAKE_READY.rpartition("\nSELECT ")[0]
_NUMBERS = "\nSELECT CAST(array_agg(seq) AS text), min(available_at) FROM taken"


def move_all(url: str, batch: int, tasks: int) -> float:
    """Move all pending events, with as many processes as the relay has tasks. Return the CPU seconds used."""
    return run_together(__name__, [url, batch], tasks)


def _move(url: str, batch: int) -> None:
    take, publish = _prepared(_MOVE + _NUMBERS), _prepared(statements.PUBLISH)
    floor = ALWAYS
    with psycopg.connect(url) as connection:
        wait_for_start()
        while True:
            lease = Lease(LeaseId(uuid4()), Token(uuid4()), DEFAULT_QUEUE)
            given = ClaimTerms(lease, None, ALWAYS, batch).parameters(batch)
            taken = connection.execute(take, {**given, "floor": floor}).fetchone()
            connection.commit()
            if taken is None or taken[0] is None:
                return
            seqs, floor = taken
            connection.execute(publish, {"lease_id": lease.lease_id, "seqs": seqs})
            connection.commit()


def _prepared(statement: str) -> str:
    return percent_style(statement.replace("{now}", "statement_timestamp()"))


if __name__ == "__main__":
    _move(sys.argv[1], int(sys.argv[2]))
