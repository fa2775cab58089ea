"""`penstock worker`: runs a worker's handlers, in one process or several."""

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from math import isfinite
from typing import Annotated

import typer

from penstock.cli.terminal.options import StoreOption
from penstock.config.extras import needs_extra
from penstock.model.errors import UsageError
from penstock.telemetry import log

# With -P, `python -m` doesn't import modules, Penstock's included, from the working folder first.
PROGRAM = (sys.executable, "-P", "-m", "penstock", "worker")

WorkerArgument = Annotated[str, typer.Argument(metavar="MODULE:WORKER", help="Worker, such as shop.workers:worker.")]
ProcessesOption = Annotated[int, typer.Option(min=1, max=1_000, help="Number of processes, each with all handlers.")]
QueuesOption = Annotated[list[str] | None, typer.Option("--queue", help="Only the handlers of this queue; repeatable.")]
ReloadOption = Annotated[bool, typer.Option("--reload", help="Restart when the code changes; for development.")]
HealthOption = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Serve GET /health at this address; further processes use the next ports. Port 0 selects free ports.",
    ),
]
GracefulOption = Annotated[
    float | None, typer.Option(metavar="SECONDS", help="Seconds for handlers to finish on stop; default the worker's.")
]
SupervisorOption = Annotated[
    int | None, typer.Option("--supervisor", hidden=True, help="File descriptor of the socket to the supervisor.")
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
    supervisor: SupervisorOption = None,
) -> None:
    """Run a worker's handlers until SIGTERM or SIGINT, then stop gracefully; a second signal stops at once.

    The worker is imported from the working folder or Python's path. --store overrides its store.
    """
    from penstock.worker.processes.launch_spec import WORKER

    if reload and processes > 1:
        raise UsageError("--reload supports only one process; omit --processes")
    if graceful_timeout is not None and not (isfinite(graceful_timeout) and graceful_timeout >= 0):
        raise UsageError(f"graceful_timeout must be finite and at least 0, got {graceful_timeout:g}")
    WORKER.module_of(name)
    addresses: list[str] | list[None] = [None] * processes
    if health is not None:
        with needs_extra("--health", "worker"):
            from penstock.web.health import health_addresses
        addresses = health_addresses(health, processes)
    store = store or context.find_root().obj
    log.to_stderr()
    if processes == 1 and not reload:
        _run(name, queue, addresses[0], graceful_timeout, store, supervisor)
        return
    options = [("--store", store), ("--graceful-timeout", graceful_timeout), *(("--queue", one) for one in queue or ())]
    commands = [_command(name, [*options, ("--health", address)]) for address in addresses]
    raise typer.Exit(_supervise(commands, name if reload else None))


def _run(
    name: str,
    queues: list[str] | None,
    address: str | None,
    graceful_timeout: float | None,
    store: str | None,
    supervisor: int | None,
) -> None:
    """Run the worker in this process."""
    from penstock.worker.processes.launch_spec import load_worker
    from penstock.worker.processes.process import Supervised

    if address is not None:
        from penstock.web.health import report, serve_health

    # Connect before importing the user's code: the supervisor must be able to end a process that hangs in an import.
    connection = None if supervisor is None else Supervised(supervisor)
    worker = load_worker(name, store, graceful_timeout)
    with nullcontext() if address is None else serve_health(address, lambda: report(worker.runtime)):
        if connection is None:
            worker.run(queues=queues or None)
        else:
            connection.run(worker, queues=queues or None)


def _command(name: str, options: Sequence[tuple[str, object]]) -> list[str]:
    """Return the command line of one worker process."""
    given = [f"{option}={value}" for option, value in options if value is not None]
    return [*PROGRAM, name, *given]


def _supervise(commands: Sequence[Sequence[str]], watched: str | None) -> int:
    """Supervise the processes and return the exit code. Restart them when the code of the worker `watched` changes."""
    from penstock.worker.processes.reloader import code_changes
    from penstock.worker.processes.supervisor import Supervisor

    changes = None if watched is None else code_changes(watched)
    return Supervisor(commands, changes).run()
