"""The jobs API over HTTP, from its OpenAPI schema: the fields of requests and responses."""

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

from penstock import Jobs
from penstock.web.jobs_api import create_app

PROBLEM = "application/problem+json"

Schema = Mapping[str, Any]


def lines() -> list[str]:
    """Return a line for each parameter and field. Schema names are omitted, because no request contains them."""
    with closing(Jobs("sqlite:///none.db")) as jobs:  # no connection is opened before a request
        api = create_app(jobs, ["token"]).openapi()
    operations = (
        (f"{method.upper()} {path}", operation)
        for path, methods in api["paths"].items()
        for method, operation in methods.items()
    )
    schemas = api["components"]["schemas"]
    return sorted({line for name, operation in operations for line in _operation(name, operation, schemas)})


def _operation(name: str, operation: Schema, schemas: Schema) -> Iterator[str]:
    yield name
    for one in operation.get("parameters", ()):
        yield f"{name} {one['in']}: {one['name']}{_mark(one['required'])}"
    for _, schema in _contents(operation.get("requestBody", {})):
        yield from (f"{name} body: {field}" for field in _fields(schema, schemas, marked=True))
    for status, answer in operation["responses"].items():
        yield from () if answer.get("content") else (f"{name} -> {status}",)
        for kind, schema in _contents(answer):
            yield f"{name} -> {status} {kind}"
            # All problem documents have the same fields.
            prefix = PROBLEM if kind == PROBLEM else f"{name} -> {status}"
            yield from (f"{prefix}: {field}" for field in _fields(schema, schemas))


def _contents(body: Schema) -> Iterator[tuple[str, Schema]]:
    return ((kind, content["schema"]) for kind, content in body.get("content", {}).items())


def _fields(schema: Schema, schemas: Schema, prefix: str = "", *, marked: bool = False) -> Iterator[str]:
    """Yield the paths of the fields; for a request, mark the required fields."""
    reference = schema.get("$ref")
    found = schemas[reference.rpartition("/")[2]] if reference else schema
    for name, field in found.get("properties", {}).items():
        yield f"{prefix}{name}{_mark(marked and name in found.get('required', ()))}"
        yield from _fields(field, schemas, f"{prefix}{name}.", marked=marked)
    if "items" in found:
        yield from _fields(found["items"], schemas, f"{prefix.removesuffix('.')}[].", marked=marked)


def _mark(required: bool) -> str:
    return " (required)" if required else ""
