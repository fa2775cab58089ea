"""The store on MariaDB: the conformance suite, and what only MySQL and MariaDB have to get right."""

from collections.abc import Iterator

import pytest
from databases import MysqlConnection, connect_mysql, empty

from penstock.store import SqlStore, StoreOptions, open_store
from penstock.store.moves import Clock
from penstock.testing.servers import MariadbServer
from penstock.testing.stores import OpenStore, SqlStoreConformance

@pytest.fixture(scope="module")
def shared_url(mariadb_server: MariadbServer) -> Iterator[str]:
    """A database with its tables, for all tests of the suite: emptying it is faster than making another."""
    url = mariadb_server.create_database()
    store = open_store(url)
    store.initialise()
    store.close()
    yield url
    mariadb_server.drop_database(url)


@pytest.fixture
def database(shared_url: str) -> str:
    empty(shared_url)
    return shared_url


class TestMysqlStore(SqlStoreConformance):
    @pytest.fixture
    def open_store(self, database: str) -> OpenStore:
        def opened(options: StoreOptions | None = None, clock: Clock | None = None) -> SqlStore:
            return open_store(database, options, clock)

        return opened

    @pytest.fixture
    def connection(self, database: str) -> Iterator[MysqlConnection]:
        """As the server makes it: REPEATABLE READ, which is stricter than the store's own."""
        with connect_mysql(database) as connection:
            yield connection
