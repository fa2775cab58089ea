"""A real server for a job queue, on a free port, with clients of it."""

from collections.abc import Iterator
from contextlib import contextmanager

from penstock.jobs import Jobs, JobsClient
from penstock.jobs.api import create_app
from penstock.jobs.server import JobServer

TOKEN = "correct-horse"


@contextmanager
def served(jobs: Jobs, *tokens: str) -> Iterator[JobServer]:
    """The server, running in a thread."""
    with JobServer(create_app(jobs, tokens)) as server:
        yield server


@contextmanager
def client_of(jobs: Jobs) -> Iterator[JobsClient]:
    """A client with a token, of a server that asks for it."""
    with served(jobs, "other", TOKEN) as server, JobsClient(server.url, TOKEN) as client:
        yield client
