"""The worker that a process is to run, as it is named on a command line."""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.loading import Wanted, search_working_folder
from penstock.worker.worker import Worker

WORKER = Wanted("worker", Worker, "shop.workers:worker")


@dataclass(frozen=True, slots=True)
class Order:
    """What to run: a worker, and what is to be otherwise than it says itself."""

    worker: str
    """As module:name. The working folder is searched first."""
    queues: Sequence[str] | None = None
    store: str | None = None
    graceful_timeout: float | None = None

    def load(self) -> Worker:
        """The worker, ready to run."""
        search_working_folder()
        worker: Worker = WORKER.load(self.worker)
        if self.store is not None:
            worker.url = self.store
        if self.graceful_timeout is not None:
            worker.graceful_timeout = self.graceful_timeout
        return worker
