"""What the tests of both databases ask about their tables and connections."""

import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from penstock.event import Event
from penstock.store import SqlStore
from penstock.store.migrate import VERSION_TABLE, Upgrade
from penstock.store.schema import metadata

STARTS = 6


def differences(store: SqlStore, *, compare_defaults: bool) -> object:
    """What the tables in the database have that the ones in the code have not, and the other way round."""
    options = {"version_table": VERSION_TABLE, "compare_type": True, "compare_server_default": compare_defaults}
    with store.transaction() as connection:
        return compare_metadata(MigrationContext.configure(connection, opts=options), metadata)


def initialise_at_once(opened: Callable[[], SqlStore]) -> list[Upgrade]:
    """Several starts that all want to create the tables first."""
    together = Barrier(STARTS)

    def start(_: int) -> Upgrade:
        store = opened()
        together.wait()
        try:
            return store.initialise()
        finally:
            store.close()

    with ThreadPoolExecutor(STARTS) as threads:
        return list(threads.map(start, range(STARTS)))


def tends_without_staging(store: SqlStore) -> None:
    """Tables of the version before staging, as a rolling upgrade meets them: upkeep does the rest of its work."""
    store.initialise()
    with store.transaction() as connection:
        connection.exec_driver_sql("DROP TABLE penstock_staged")
        connection.exec_driver_sql("DROP TABLE penstock_sinks")
    store.tend()
    assert store.append([Event(event_type="order.placed")])
    store.close()


def told(error: BaseException) -> str:
    """All that a log would show of an error, with its causes."""
    return "".join(traceback.format_exception(error))
