"""An HTTP server of the jobs API on a free port, and a client of the server."""

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.jobs import Jobs, JobsClient
from penstock.web.jobs_api import create_app
from penstock.web.server import HttpServer

TOKEN = "correct-horse"


@contextmanager
def served(jobs: Jobs, *tokens: str) -> Iterator[HttpServer]:
    """Run the server in a thread."""
    app = create_app(jobs, tokens)
    with HttpServer(app, on_stop=app.end_waiting) as server:
        yield server


@contextmanager
def client_of(jobs: Jobs) -> Iterator[JobsClient]:
    """Open a client with a token, on a server that requires one."""
    with served(jobs, "other", TOKEN) as server, JobsClient(server.url, TOKEN) as client:
        yield client
