"""A real server for a job queue, on a free port, with clients of it."""

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.jobs import Jobs, JobsClient
from penstock.web.jobs_api import create_app
from penstock.web.server import HttpServer

TOKEN = "correct-horse"


@contextmanager
def served(jobs: Jobs, *tokens: str) -> Iterator[HttpServer]:
    """The server, running in a thread."""
    app = create_app(jobs, tokens)
    with HttpServer(app, on_stop=app.end_waiting) as server:
        yield server


@contextmanager
def client_of(jobs: Jobs) -> Iterator[JobsClient]:
    """A client with a token, of a server that asks for it."""
    with served(jobs, "other", TOKEN) as server, JobsClient(server.url, TOKEN) as client:
        yield client
