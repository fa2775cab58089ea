"""Looking at the dead in a SQL database. Reads only, and no payloads: they may be large."""

from sqlalchemy import ColumnElement, Connection, FromClause, and_, func, literal_column, or_, select

from penstock.model.dead_letters import Death, DeathCount, DeathMark, DeathPage, page_of, tallied
from penstock.model.error_kinds import BEGINNING
from penstock.model.selection import Selection
from penstock.store.sql.schema import archive, events
from penstock.store.sql.verbs.queries import EVENT_ID, conditions, settled_states

ROWS_AT_A_TIME = 1_000
# Spelled out, because an index of only the dead is of no use to SQLite where the state is a parameter.
IS_DEAD: ColumnElement[bool] = archive.c.state == literal_column("'DEAD'")
ERROR = func.substr(func.coalesce(archive.c.last_error, ""), 1, BEGINNING)


def deaths(
    connection: Connection, selection: Selection, *, after: DeathMark | None = None, limit: int = 100
) -> DeathPage:
    """The latest first, and of those at the same time the one emitted last."""
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
        .select_from(archive.join(events, events.c.seq == archive.c.seq))
        .where(*_dead(selection), *_after(after))
        .order_by(archive.c.settled_at.desc(), archive.c.seq.desc())
        .limit(limit + 1)
    )
    return page_of([Death(**row._asdict()) for row in connection.execute(statement)], limit)


def death_counts(connection: Connection, selection: Selection) -> list[DeathCount]:
    """Errors that are alike to the letter are counted by the database, and their kinds here, as the rows come."""
    statement = (
        select(archive.c.queue, ERROR, func.count())
        .select_from(_needed(selection))
        .where(*_dead(selection))
        .group_by(archive.c.queue, ERROR)
    )
    rows = connection.execute(statement, execution_options={"yield_per": ROWS_AT_A_TIME})
    return tallied((row[0], row[1], row[2]) for row in rows)


def _needed(selection: Selection) -> FromClause:
    """Events are large, and read only where the selection asks for something that they alone know."""
    asked = (selection.ids, selection.event_type, selection.event_types, selection.since, selection.until)
    with_events = archive.join(events, events.c.seq == archive.c.seq)
    return archive if all(part is None for part in asked) else with_events


def _dead(selection: Selection) -> list[ColumnElement[bool]]:
    return [IS_DEAD, *conditions(selection, archive), *settled_states(selection)]


def _after(mark: DeathMark | None) -> list[ColumnElement[bool]]:
    if mark is None:
        return []
    died_at = archive.c.settled_at
    return [or_(died_at < mark.died_at, and_(died_at == mark.died_at, archive.c.seq < mark.seq))]
