"""`penstock jobs`: the job queue's HTTP server, and commands to submit, inspect, await and cancel jobs."""

import json as codec
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.admin.text import count
from penstock.cli.commands.events import short_error, short_time, state_text
from penstock.cli.terminal import output, times
from penstock.cli.terminal.filters import TypeOption
from penstock.cli.terminal.options import (
    Call,
    DryRunOption,
    LimitOption,
    StoreOption,
    YesOption,
    group_of_commands,
    operator,
    takes_options,
)
from penstock.model.errors import UsageError
from penstock.model.lifecycle import State

if TYPE_CHECKING:
    from rich.console import RenderableType

    from penstock.jobs import Jobs

TOKEN_VARIABLE = "PENSTOCK_JOBS_TOKEN"  # noqa: S105
TOKENS_VARIABLE = "PENSTOCK_JOBS_TOKENS"

jobs = group_of_commands("jobs", "Submit, inspect and cancel jobs; serve a job queue over HTTP.")

NameOption = Annotated[str, typer.Option("--name", help="Job queue.")]
JobArgument = Annotated[str, typer.Argument(metavar="ID", help="Job id.")]


@dataclass(frozen=True, slots=True)
class QueueCall(Call):
    """The options of a call on a job queue: store, JSON output and queue name."""

    name: NameOption = "jobs"

    @contextmanager
    def queue(self, **settings: Any) -> "Iterator[Jobs]":
        from penstock.jobs import Jobs

        with self.opened() as admin, Jobs(admin.store, self.name, **settings) as queue:
            yield queue


@jobs.command()
def serve(
    context: typer.Context,
    host: Annotated[str, typer.Option(help="Address to listen on; any except loopback requires a token.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port to listen on; 0 selects a free port.")] = 8070,
    token: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOKEN",
            help=f"Accepted token; repeatable. Visible in process lists: prefer the variable {TOKEN_VARIABLE}.",
        ),
    ] = None,
    heartbeat_seconds: Annotated[float, typer.Option(min=0.001, help="Seconds between a worker's heartbeats.")] = 5.0,
    timeout_seconds: Annotated[
        float, typer.Option(min=0.002, help="Seconds without heartbeat until a job expires.")
    ] = 30.0,
    name: NameOption = "jobs",
    store: StoreOption = None,
) -> None:
    """Serve a job queue over HTTP until interrupted."""
    from penstock.config.extras import needs_extra

    with needs_extra("the job server", "jobs"):
        from penstock.web.jobs_api import create_app
        from penstock.web.server import HttpServer, require_safe

    tokens = [*(token or ()), *_tokens_of_environment()]
    require_safe(host, tokens, f"--token or {TOKEN_VARIABLE}")
    settings = {"heartbeat_seconds": heartbeat_seconds, "timeout_seconds": timeout_seconds}
    with QueueCall(context, store, name=name).queue(**settings) as queue:
        queue.stats()  # fail now if the store is unusable
        app = create_app(queue, tokens)
        server = HttpServer(app, host, port, on_stop=app.end_waiting)
        output.write(f"serving {name} at {server.url}")
        server.serve_until_stopped()


def _tokens_of_environment() -> list[str]:
    several = os.environ.get(TOKENS_VARIABLE, "").split(",")
    return [one.strip() for one in (os.environ.get(TOKEN_VARIABLE, ""), *several) if one.strip()]


@jobs.command()
@takes_options
def submit(
    job_type: Annotated[str, typer.Argument(metavar="TYPE", help="Job type, such as email:send.")],
    payload: Annotated[str, typer.Argument(help="Payload, as JSON.")] = "null",
    max_attempts: Annotated[int, typer.Option(min=1, help="Maximum number of attempts.")] = 3,
    priority: Annotated[int, typer.Option(min=-100, max=100, help="Higher priorities are claimed first.")] = 0,
    delay: Annotated[str | None, typer.Option(metavar="TIME", help="Delay: seconds, or a value such as 10m.")] = None,
    dedupe_key: Annotated[str | None, typer.Option(help="Later jobs with this key within a day are dropped.")] = None,
    *,
    call: QueueCall,
) -> None:
    """Submit a job and print its id."""
    try:
        body = codec.loads(payload)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"invalid payload: not JSON: {error}; quote text, as in '\"text\"'") from error
    seconds = None if delay is None else times.seconds(delay)
    with call.queue() as queue:
        job_id = queue.submit(
            job_type, body, max_attempts=max_attempts, priority=priority, delay=seconds, dedupe_key=dedupe_key
        )
    call.answer({"job_id": str(job_id)}, str(job_id))


@jobs.command("list")
@takes_options
def list_jobs(
    state: Annotated[
        State | None,
        typer.Option(
            metavar="STATE",
            case_sensitive=False,
            help="Only this state: pending, claimed, published or dead.",
            show_default=False,
        ),
    ] = None,
    job_type: TypeOption = None,
    limit: LimitOption = 50,
    after: Annotated[
        int | None, typer.Option(metavar="SEQ", help="Continue after the number printed by the previous list.")
    ] = None,
    *,
    call: QueueCall,
) -> None:
    """List jobs, newest first."""
    with call.queue() as queue:
        page = queue.list(state, job_type, limit=limit, after=after)
    found = [one.as_json() for one in page.jobs]
    if call.json:
        output.write_json(found)
    elif found:
        output.show(_table(found))
    else:
        output.note("no jobs match")
    if page.after is not None:
        output.note(f"more results: use --after {page.after}")


@jobs.command()
@takes_options
def show(job: JobArgument, call: QueueCall) -> None:
    """Show one job: state, payload and result. `penstock show` prints its timeline."""
    with call.queue() as queue:
        _show(queue.get(job).as_json(), call.json)


@jobs.command()
@takes_options
def wait(
    job: JobArgument,
    timeout: Annotated[str | None, typer.Option(metavar="TIME", help="Maximum wait; default no limit.")] = None,
    *,
    call: QueueCall,
) -> None:
    """Wait until a job is completed, then show it. The exit code is 1 if the job is dead or the time-out is reached."""
    seconds = None if timeout is None else times.seconds(timeout)
    with call.queue() as queue, output.waiting(f"waiting for {job}"):
        done = queue.wait(job, seconds).as_json()
    _show(done, call.json)


@jobs.command()
@takes_options
def cancel(
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID…", help="Ids of pending or claimed jobs.")] = None,
    job_type: Annotated[str | None, typer.Option("--type", help="Cancel all pending jobs of this type.")] = None,
    reason: Annotated[str, typer.Option(help="Reason, stored as the job's error.")] = "cancelled",
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    *,
    call: QueueCall,
) -> None:
    """Make pending or claimed jobs dead. Workers learn of a cancelled job at their next heartbeat."""
    if bool(ids) == (job_type is not None):
        raise UsageError("cancel requires either job ids or --type")
    with call.queue() as queue:
        if job_type is not None:
            total = queue.cancel_pending(job_type, reason, by=operator(), dry_run=True)
            if not dry_run:
                if not yes:
                    output.require_yes(f"cancel {count(total, 'job')}?")
                total = queue.cancel_pending(job_type, reason, by=operator())
        else:
            total = len([queue.get(one) for one in ids or ()])  # refuse unknown ids before any change
            for one in () if dry_run else ids or ():
                queue.cancel(one, reason, by=operator())
    if dry_run:
        call.answer({"dry_run": True, "total": total}, f"would cancel {count(total, 'job')}")
    else:
        call.answer({"cancelled": total}, f"{count(total, 'job')} cancelled")


@jobs.command()
@takes_options
def stats(call: QueueCall) -> None:
    """Count jobs by type and state."""
    with call.queue() as queue:
        counted = queue.stats()
    if call.json:
        output.write_json(counted.as_json())
        return
    numbers = ("pending", "claimed", "completed", "dead")
    rows = ({"type": one.type, **{name: str(getattr(one, name)) for name in numbers}} for one in counted.types)
    output.show(output.table(rows, ("type", *numbers), right=numbers))


def _table(found: list[dict[str, Any]]) -> "RenderableType":
    rows = (
        {
            "id": job["job_id"],
            "type": job["type"],
            "state": state_text(job["state"]),
            "attempts": f"{job['attempts']}/{job['max_attempts'] or '∞'}",
            "submitted": short_time(job["submitted_at"]),
            "worker": job["worker"] or "",
            "error": short_error(job["error"]),
        }
        for job in found
    )
    columns = ("id", "type", "state", "attempts", "submitted", "worker", "error")
    return output.table(rows, columns, right=("attempts",), whole=("id",))


def _show(job: dict[str, Any], as_json: bool) -> None:
    if as_json:
        output.write_json(job)
        return
    fields = ((name, value) for name, value in job.items() if value is not None and value != {})
    output.show(
        output.grid(
            (name, value if isinstance(value, str) else codec.dumps(value, ensure_ascii=False))
            for name, value in fields
        )
    )
