"""Audit of a store: triggers of the database log every transition; the functions here find the forbidden ones."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from penstock.model import lifecycle
from penstock.model.lifecycle import Life, State
from penstock.model.outcome import PUBLISHED, RELEASED, Dead, Retry

POSTGRES = """
CREATE TABLE seen (
    id bigserial PRIMARY KEY, what text, seq bigint, ordering_key text, lease_id uuid, token uuid, attempts int,
    deliveries int, replays int, suspect int, tx text DEFAULT pg_current_xact_id()::text);
CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE row jsonb := to_jsonb(NEW);
BEGIN
    INSERT INTO seen (what, seq, ordering_key, lease_id, token, attempts, deliveries, replays, suspect)
    VALUES (coalesce(row ->> 'state', TG_ARGV[0]), (row ->> 'seq')::bigint, row ->> 'ordering_key',
            (row ->> 'lease_id')::uuid, (row ->> 'token')::uuid, (row ->> 'attempts')::int,
            (row ->> 'deliveries')::int, (row ->> 'replays')::int, (row ->> 'suspect')::int);
    RETURN NULL;
END $$;
CREATE TRIGGER see AFTER INSERT OR UPDATE ON penstock_pending FOR EACH ROW EXECUTE FUNCTION see('PENDING');
CREATE TRIGGER see AFTER INSERT OR UPDATE ON penstock_claimed FOR EACH ROW EXECUTE FUNCTION see('CLAIMED');
CREATE TRIGGER see AFTER INSERT OR UPDATE ON penstock_archive FOR EACH ROW EXECUTE FUNCTION see('ARCHIVED');
CREATE TRIGGER see AFTER INSERT OR UPDATE OF token ON penstock_leases FOR EACH ROW EXECUTE FUNCTION see('token');
"""
_SQLITE_ROW = """
CREATE TRIGGER see_{table}_{verb} AFTER {verb} ON penstock_{table} BEGIN
    INSERT INTO seen (what, seq, ordering_key, lease_id, attempts, deliveries, replays, suspect, tx)
    VALUES ({what}, NEW.seq, NEW.ordering_key, {lease}, NEW.attempts, NEW.deliveries, NEW.replays, NEW.suspect, {tx});
END;
"""
_SQLITE_LEASE = """
CREATE TRIGGER see_leases_{verb} AFTER {verb} ON penstock_leases BEGIN
    INSERT INTO seen (what, lease_id, token) VALUES ('token', NEW.lease_id, NEW.token);
END;
"""
_SQLITE_TABLES = (
    ("pending", "'PENDING'", "NULL", "NULL"),
    ("claimed", "'CLAIMED'", "NEW.lease_id", "NULL"),
    ("archive", "NEW.state", "NEW.lease_id", "NEW.lease_id || NEW.settled_at"),
)
SQLITE = (
    "CREATE TABLE seen (id INTEGER PRIMARY KEY, what, seq, ordering_key, lease_id, token, attempts, deliveries, "
    "replays, suspect, tx);"
    + "".join(
        _SQLITE_ROW.format(table=table, verb=verb, what=what, lease=lease, tx=tx)
        for table, what, lease, tx in _SQLITE_TABLES
        for verb in ("INSERT", "UPDATE")
    )
    + _SQLITE_LEASE.format(verb="INSERT")
    + _SQLITE_LEASE.format(verb="UPDATE").replace("AFTER UPDATE", "AFTER UPDATE OF token")
)
_MYSQL_ROW = """
CREATE TRIGGER see_{table}_{verb} AFTER {verb} ON penstock_{table} FOR EACH ROW
    INSERT INTO seen (what, seq, ordering_key, lease_id, attempts, deliveries, replays, suspect, tx)
    VALUES ({what}, NEW.seq, NEW.ordering_key, {lease}, NEW.attempts, NEW.deliveries, NEW.replays, NEW.suspect, {tx})
"""
_MYSQL_LEASE = """
CREATE TRIGGER see_leases_{verb} AFTER {verb} ON penstock_leases FOR EACH ROW
    INSERT INTO seen (what, lease_id, token) SELECT 'token', NEW.lease_id, NEW.token WHERE {new}
"""
MYSQL = (
    "CREATE TABLE seen (id bigint AUTO_INCREMENT PRIMARY KEY, what varchar(20), seq bigint, ordering_key varchar(255), "
    "lease_id binary(16), token binary(16), attempts int, deliveries int, replays int, suspect int, tx varchar(100))",
    *(
        _MYSQL_ROW.format(table=table, verb=verb, what=what, lease=lease, tx=tx.replace(sqlite_tx, mysql_tx))
        for table, what, lease, tx in _SQLITE_TABLES
        for verb in ("INSERT", "UPDATE")
        for sqlite_tx, mysql_tx in [("NEW.lease_id || NEW.settled_at", "CONCAT(HEX(NEW.lease_id), NEW.settled_at)")]
    ),
    _MYSQL_LEASE.format(verb="INSERT", new="TRUE"),
    _MYSQL_LEASE.format(verb="UPDATE", new="NEW.token <> OLD.token"),
)


class Seen(NamedTuple):
    """One entry of the log: a row written to a state's table, a new token of a lease, or a settle by a claimer."""

    what: str
    seq: int
    ordering_key: str | None
    lease_id: object
    token: object
    attempts: int
    deliveries: int
    replays: int
    suspect: int
    tx: str | None

    @property
    def life(self) -> Life:
        return Life(State(self.what), self.attempts, self.deliveries, self.replays, self.suspect)


def read(connection: Any) -> list[Seen]:
    found = connection.execute(f"SELECT {', '.join(Seen._fields)} FROM seen ORDER BY id").fetchall()
    return [Seen._make(row) for row in found]


def moves(log: Sequence[Seen]) -> list[Seen]:
    return [line for line in log if line.what in set(State)]


def successors(life: Life, max_attempts: int) -> set[Life]:
    """Return every life that may follow, by `penstock.model.lifecycle`. `last_error` is ignored."""
    match life.state:
        case State.PENDING:
            following = {lifecycle.claim(life)}
        case State.CLAIMED:
            outcomes = (PUBLISHED, RELEASED, Dead("x"), Retry("x"))
            lost = lifecycle.expire(life, max_attempts=max_attempts)
            following = {lifecycle.settle(life, outcome, max_attempts=max_attempts) for outcome in outcomes}
            following |= {lost} | ({lifecycle.claim(lost)} if lost.state is State.PENDING else set())
        case _:
            following = {lifecycle.replay(life)}
    return {replace(one, last_error=None) for one in following}


def illegal_moves(log: Sequence[Seen], max_attempts: int) -> list[tuple[int, Life | None, Life]]:
    lives: dict[int, Life] = {}
    found: list[tuple[int, Life | None, Life]] = []
    for line in moves(log):
        before = lives.get(line.seq)
        allowed = {Life()} if before is None else successors(before, max_attempts)
        if line.life not in allowed:
            found.append((line.seq, before, line.life))
        lives[line.seq] = line.life
    return found


def settled_twice(log: Sequence[Seen]) -> list[tuple[int, int]]:
    """Return the events that were archived more than once without a replay in between."""
    ends = Counter((line.seq, line.replays) for line in moves(log) if line.what in ("PUBLISHED", "DEAD"))
    return [end for end, count in ends.items() if count > 1]


def stale_settles(log: Sequence[Seen]) -> list[Seen]:
    """Return the settles that took effect under a token that was no longer the newest of its lease."""
    newest: dict[object, object] = {}
    found: list[Seen] = []
    for line in log:
        if line.what == "token":
            newest[line.lease_id] = line.token
        elif line.what == "settled" and newest.get(line.lease_id) != line.token:
            found.append(line)
    return found


def shared_keys(log: Sequence[Seen]) -> list[Seen]:
    """Return the claims of an ordering key while another lease held events of this key."""
    held: dict[str, dict[int, object]] = {}
    found: list[Seen] = []
    for line in moves(log):
        if line.ordering_key is None:
            continue
        of_key = held.setdefault(line.ordering_key, {})
        of_key.pop(line.seq, None)
        if line.what == "CLAIMED":
            if any(lease_id != line.lease_id for lease_id in of_key.values()):
                found.append(line)
            of_key[line.seq] = line.lease_id
    return found


def out_of_order(log: Sequence[Seen]) -> list[Seen]:
    """Return the events of an ordering key that were published after a later event of the key. Events of one
    transaction count as published together."""
    last: dict[str, tuple[str | None, int, int]] = {}
    found: list[Seen] = []
    for line in moves(log):
        if line.what != "PUBLISHED" or line.ordering_key is None:
            continue
        tx, before, highest = last.get(line.ordering_key, (None, 0, 0))
        before = before if tx == line.tx else highest
        if line.seq <= before:
            found.append(line)
        last[line.ordering_key] = (line.tx, before, max(highest, line.seq))
    return found


def count(log: Iterable[Seen], what: str) -> int:
    return sum(line.what == what for line in log)
