"""HTTP errors: each is a problem document (RFC 9457) without internal details."""

from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route

from penstock.model.errors import JobError, JobNotFound, PenstockError, StoreError, UsageError
from penstock.telemetry import log
from penstock.web.auth import ProblemResponse

MOST_ERRORS = 20

# The first matching class decides: JobNotFound is a subclass of JobError.
_STATUSES = {JobNotFound: 404, JobError: 409, UsageError: 422, StoreError: 503}

_MEANINGS = {
    400: "Malformed request",
    401: "Missing or wrong token",
    404: "Unknown job",
    409: "The job's state does not permit the request",
    413: "Request body too large",
    422: "Invalid request; `errors` lists the fields",
    503: "Store unavailable",
}


def answers(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the error responses of an operation, for its schema; every operation has 400, 401, 413, 422 and 503."""
    content = {ProblemResponse.media_type: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    every = (400, 401, 413, 422, 503, *statuses)
    return {status: {"description": _MEANINGS[status], "content": content} for status in sorted(every)}


def install(app: FastAPI, *routers: APIRouter) -> None:
    """Answer every error in `app` with a problem document. `routers` are the routers of `app`."""
    app.state.known_routes = [one for router in routers for one in router.routes if isinstance(one, Route)]
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(PenstockError, _failed)
    app.add_exception_handler(Exception, _unexpected)


def _invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    errors = [
        {"field": _printable(".".join(map(str, one["loc"]))), "message": _printable(one["msg"])}
        for one in error.errors()[:MOST_ERRORS]
    ]
    said = "; ".join(f"{one['field']}: {one['message']}" for one in errors[:3])
    return ProblemResponse(422, f"invalid request: {said}", errors)


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    match error.status_code:
        case 404:
            return ProblemResponse(404, f"path {request.url.path} does not exist; see /openapi.json")
        case 405:
            methods = ", ".join(_methods(request))
            return ProblemResponse(405, f"path {request.url.path} supports only {methods}", headers={"Allow": methods})
        case status:
            return ProblemResponse(status, str(error.detail), headers=error.headers)


def _methods(request: Request) -> list[str]:
    """Return the methods of a path over all routes: Starlette reports only the first matching route."""
    known: list[Route] = request.app.state.known_routes
    matching = [route for route in known if route.matches(request.scope)[0] is not Match.NONE]
    return sorted({method for route in matching for method in route.methods or ()})


def _failed(_: Request, error: Exception) -> Response:
    status = next((status for kind, status in _STATUSES.items() if isinstance(error, kind)), 500)
    return ProblemResponse(status, _printable(str(error)))


def _unexpected(request: Request, error: Exception) -> Response:
    log.warn("request_failed", path=request.url.path, error=repr(error))
    return ProblemResponse(500, "internal error; see the server's log")


def _printable(text: str) -> str:
    return text.encode(errors="replace").decode()
