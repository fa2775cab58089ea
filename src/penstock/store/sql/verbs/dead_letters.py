"""Queries of the dead letters in a SQL database. Payloads are not read, because they may be large."""

from sqlalchemy import ColumnElement, Connection, FromClause, and_, func, literal_column, or_, select

from penstock.model.dead_letters import Death, DeathCount, DeathMark, DeathPage, count_by_kind, page_of
from penstock.model.error_kinds import BEGINNING
from penstock.model.selection import Selection
from penstock.store.sql.schema import archive, events
from penstock.store.sql.verbs.queries import EVENT_ID, SETTLED, chosen_settled

ROWS_AT_A_TIME = 1_000
# A literal: SQLite cannot use the partial index on dead events if the state is a parameter.
IS_DEAD: ColumnElement[bool] = archive.c.state == literal_column("'DEAD'")
ERROR = func.substr(func.coalesce(archive.c.last_error, ""), 1, BEGINNING)


def deaths(
    connection: Connection, selection: Selection, *, after: DeathMark | None = None, limit: int = 100
) -> DeathPage:
    """Return a page of dead letters: latest death first; at equal times, latest emitted first."""
    statement = (
        select(
            archive.c.seq,
            EVENT_ID.label("event_id"),
            events.c.event_type,
            archive.c.queue,
            archive.c.attempts,
            archive.c.replays,
            events.c.created_at,
            archive.c.settled_at.label("died_at"),
            ERROR.label("error"),
        )
        .select_from(SETTLED)
        .where(IS_DEAD, *chosen_settled(selection), *_after(after))
        .order_by(archive.c.settled_at.desc(), archive.c.seq.desc())
        .limit(limit + 1)
    )
    return page_of([Death(**row._asdict()) for row in connection.execute(statement)], limit)


def death_counts(connection: Connection, selection: Selection) -> list[DeathCount]:
    """Count dead letters by kind of error. The database groups identical error texts, this function their kinds."""
    statement = (
        select(archive.c.queue, ERROR, func.count())
        .select_from(_needed(selection))
        .where(IS_DEAD, *chosen_settled(selection))
        .group_by(archive.c.queue, ERROR)
    )
    rows = connection.execute(statement, execution_options={"yield_per": ROWS_AT_A_TIME})
    return count_by_kind((row[0], row[1], row[2]) for row in rows)


def _needed(selection: Selection) -> FromClause:
    """Return the tables to query: the archive alone, unless the selection needs columns of the large events table."""
    asked = (selection.ids, selection.event_type, selection.event_types, selection.since, selection.until)
    return archive if all(part is None for part in asked) else SETTLED


def _after(mark: DeathMark | None) -> list[ColumnElement[bool]]:
    if mark is None:
        return []
    died_at = archive.c.settled_at
    return [or_(died_at < mark.died_at, and_(died_at == mark.died_at, archive.c.seq < mark.seq))]
