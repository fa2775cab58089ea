"""The API does what its schema says: Schemathesis makes up requests, good and bad, and checks every answer."""

from collections.abc import Iterator

import hypothesis
import pytest
import schemathesis
from http_server import TOKEN

from penstock.jobs import Jobs
from penstock.store.registry import open_store
from penstock.web.jobs_api import create_app
from tests.support.servers import PostgresServer

EXAMPLES = 30

# Tests are collected from the schema before there is a store; nothing connects until a request comes.
app = create_app(Jobs("sqlite:///none.db"), [TOKEN], max_wait_seconds=0.01)
schema = schemathesis.openapi.from_asgi("/openapi.json", app)


@pytest.fixture(scope="module", autouse=True)
def _store(postgres_server: PostgresServer) -> Iterator[None]:
    """PostgreSQL, which refuses more than SQLite does."""
    url = postgres_server.create_database()
    store = open_store(url)
    store.initialise()
    store.close()
    with Jobs(url) as app.jobs:
        yield
    postgres_server.drop_database(url)


@schema.parametrize()
@hypothesis.settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)
def test_every_answer_is_in_the_schema(case: schemathesis.Case) -> None:
    case.call_and_validate(headers={"Authorization": f"Bearer {TOKEN}"})
