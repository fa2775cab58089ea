"""The HTTP API conforms to its schema: Schemathesis generates valid and invalid requests and checks every response."""

import json
import re
from collections.abc import Iterator
from functools import reduce

import hypothesis
import pytest
import schemathesis
from http_server import TOKEN

from penstock.jobs import Jobs
from penstock.store.registry import open_store
from penstock.web.jobs_api import create_app
from tests.support.servers import PostgresServer

EXAMPLES = 30

# pytest collects the tests from the schema before a store exists; nothing connects before the first request.
app = create_app(Jobs("sqlite:///none.db"), [TOKEN], max_wait_seconds=0.01)
schema = schemathesis.openapi.from_asgi("/openapi.json", app)


@pytest.fixture(scope="module", autouse=True)
def _store(postgres_server: PostgresServer) -> Iterator[None]:
    """Serve a store on PostgreSQL, which rejects more values than SQLite."""
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
def test_every_response_conforms_to_schema(case: schemathesis.Case) -> None:
    case.call_and_validate(headers={"Authorization": f"Bearer {TOKEN}"})


def test_references_in_schema_have_targets() -> None:
    document = app.openapi()
    references = set(re.findall(r'"\$ref": "#/([^"]+)"', json.dumps(document)))
    assert "components/schemas/FieldProblem" in references
    for reference in references:
        assert reduce(dict.__getitem__, reference.split("/"), document)
