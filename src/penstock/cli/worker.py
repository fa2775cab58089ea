"""`penstock worker`: runs a worker's handlers, in this process or in several."""

from contextlib import ExitStack
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock import telemetry
from penstock.cli.options import StoreOption
from penstock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.worker.loading import Order

WorkerArgument = Annotated[
    str, typer.Argument(metavar="MODULE:WORKER", help="The worker, such as shop.workers:worker.")
]
ProcessesOption = Annotated[
    int, typer.Option(min=1, max=1_000, help="Processes that run it, each with all its handlers.")
]
QueuesOption = Annotated[
    list[str] | None, typer.Option("--queue", help="Only this queue's handlers; can be given again.")
]
ReloadOption = Annotated[bool, typer.Option("--reload", help="Restart it when its code changes: for development.")]
HealthOption = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Serve GET /health there; port 0 is a free one.")
]
GracefulOption = Annotated[
    float | None, typer.Option(metavar="SECONDS", help="How long handlers may go on when it stops; else as it says.")
]


def worker(
    context: typer.Context,
    name: WorkerArgument,
    processes: ProcessesOption = 1,
    queue: QueuesOption = None,
    reload: ReloadOption = False,
    health: HealthOption = None,
    graceful_timeout: GracefulOption = None,
    store: StoreOption = None,
) -> None:
    """Run a worker's handlers until SIGTERM or Ctrl-C, then stop gracefully; a second one stops at once.

    The worker is found in the working folder or on Python's path. Its store is its own unless --store names another.
    """
    from penstock.worker.health import HealthServer, parse_address
    from penstock.worker.loading import Order

    if reload and processes > 1:
        raise UsageError("--reload is for one process; leave --processes out")
    if graceful_timeout is not None and not (isfinite(graceful_timeout) and graceful_timeout >= 0):
        raise UsageError(f"--graceful-timeout must be a number of seconds, 0 or more, not {graceful_timeout:g}")
    address = None if health is None else parse_address(health)
    order = Order(name, queue or None, store or context.find_root().obj, graceful_timeout)
    run, look = _supervised(order, processes, reload) if reload or processes > 1 else _alone(order)
    telemetry.to_stderr()
    with ExitStack() as around:
        if address is not None:
            around.enter_context(HealthServer(address, look))
        run()


def _alone(order: "Order") -> "tuple[Callable[[], None], Callable[[], dict[str, Any]]]":
    """What runs it in this process, and what says how it is."""
    from penstock.worker.health import report

    loaded = order.load()
    return lambda: loaded.run(queues=order.queues), lambda: report(loaded.runtime)


def _supervised(
    order: "Order", processes: int, reload: bool
) -> "tuple[Callable[[], None], Callable[[], dict[str, Any]]]":
    """The same for processes of their own."""
    from penstock.worker.loading import WORKER
    from penstock.worker.processes import Supervisor
    from penstock.worker.watching import Watcher

    WORKER.module_of(order.worker)
    supervisor = Supervisor(order, processes, Watcher(order.worker) if reload else None)
    return supervisor.run, supervisor.health
