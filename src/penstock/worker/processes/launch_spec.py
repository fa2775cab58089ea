"""Import of the worker named on a command line."""

from penstock.config.import_path import ImportTarget, search_working_folder
from penstock.worker.worker import Worker

WORKER = ImportTarget("worker", Worker, "shop.workers:worker")


def load_worker(name: str, store: str | None = None, graceful_timeout: float | None = None) -> Worker:
    """Load the worker `module:name`; replace its store or grace period if given."""
    search_working_folder()
    worker: Worker = WORKER.load(name)
    if store is not None:
        worker.url = store
    if graceful_timeout is not None:
        worker.graceful_timeout = graceful_timeout
    return worker
