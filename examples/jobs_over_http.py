"""Jobs over HTTP: a server, a shop that submits emails, and a worker that sends them.

One job fails at the first attempt, one has no address, and one is cancelled. The result of each is recorded.
"""

import sys
import tempfile
import threading
from typing import Any

from pydantic import BaseModel

import penstock
from penstock.jobs import JobContext
from penstock.model.errors import JobFailed
from penstock.web.jobs_api import create_app
from penstock.web.server import HttpServer

TOKEN = "correct-horse"


class Email(BaseModel):
    to: str


def send(email: dict[str, str], context: JobContext) -> dict[str, Any]:
    """Send an email. The simulated mail server is busy at the first attempt for bob."""
    if email["to"] == "bob" and context.job.attempts == 1:
        raise ConnectionError("the mail server is busy")
    context.progress({"percent": 50})
    return {"sent_to": email["to"], "attempts": context.job.attempts}


def shop(url: str, store: str) -> None:
    """Submit jobs and print their results."""
    with penstock.JobsClient(url, TOKEN) as client:
        unwanted = client.submit("email:send", {"to": "dave"}, delay=3600)
        client.cancel(unwanted, "the order was cancelled")
        with penstock.Jobs(store) as unchecked:  # this client has no model, and so submits an invalid email
            invalid = unchecked.submit("email:send", {"subject": "Hello"})
        for job_id in (*(client.submit("email:send", {"to": name}) for name in ("ada", "bob")), invalid, unwanted):
            try:
                sys.stdout.write(f"completed: {client.wait(job_id, 30).result}\n")
            except JobFailed as error:
                sys.stdout.write(f"{str(error).partition(' is ')[2]}\n")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = f"sqlite:///{folder}/jobs.db"
        with penstock.connect(store) as outbox:
            outbox.store.initialise()
        stop = threading.Event()
        retry = penstock.RetryPolicy.constant(0.1)
        with penstock.Jobs(store, models={"email:send": Email}, retry=retry) as jobs:
            with HttpServer(create_app(jobs, [TOKEN])) as server, penstock.JobsClient(server.url, TOKEN) as client:
                work = {"worker_id": "worker-1", "stop": stop}
                worker = threading.Thread(target=client.work, args=({"email:send": send},), kwargs=work)
                worker.start()
                shop(server.url, store)
                stop.set()
                worker.join()
            sys.stdout.write(f"{jobs.stats().as_json()['types']}\n")


if __name__ == "__main__":
    main()


# Output:
# completed: {'sent_to': 'ada', 'attempts': 1}
# completed: {'sent_to': 'bob', 'attempts': 2}
# dead: invalid payload: to: Field required
# dead: the order was cancelled
# [{'type': 'email:send', 'pending': 0, 'claimed': 0, 'completed': 2, 'dead': 2}]
