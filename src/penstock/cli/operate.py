"""`penstock init`, `reap`, `replay` and `purge`: what changes a store, each shown before it is done."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from penstock.admin.wording import count
from penstock.cli import output
from penstock.cli.events import table
from penstock.cli.failure import FAILURE
from penstock.cli.from_lake import FromLakeOption, replay_from_lake
from penstock.cli.options import (
    AllOption,
    DryRunOption,
    ErrorOption,
    IdsOption,
    JsonOption,
    QueueOption,
    SinceOption,
    StatesOption,
    StoreOption,
    TypeOption,
    UntilOption,
    YesOption,
    chosen_store,
    opened,
    operator,
    select,
)
from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock.admin.service import Preview

SHOWN_GROUPS = 20


def init(context: typer.Context, store: StoreOption = None, json: JsonOption = False) -> None:
    """Create Penstock's tables, or upgrade them. Safe to repeat."""
    with opened(context, store) as admin, output.waiting("creating the tables"):
        upgrade = admin.initialise()
        url = admin.store.url
    if json:
        output.write_json(
            {"store": url, "before": upgrade.before, "after": upgrade.after, "steps": list(upgrade.steps)}
        )
    elif not upgrade.steps:
        output.write(f"{url} is up to date, at version {upgrade.after}")
    elif upgrade.before is None:
        output.write(f"{url} is ready, at version {upgrade.after}")
    else:
        output.write(f"{url} went from version {upgrade.before} to {upgrade.after}: {'; '.join(upgrade.steps)}")


def reap(context: typer.Context, store: StoreOption = None, json: JsonOption = False) -> None:
    """Take back the events of expired leases. A running relay does this by itself."""
    with opened(context, store) as admin, output.progress("reaping") as update:
        taken = admin.reap(progress=update)
    if json:
        output.write_json({"reaped": taken})
    else:
        output.write(f"{count(taken, 'event')} reaped")


def replay(
    context: typer.Context,
    ids: IdsOption = None,
    state: StatesOption = None,
    queue: QueueOption = None,
    event_type: TypeOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    error: ErrorOption = None,
    everything: AllOption = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    from_lake: FromLakeOption = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Make published and dead events pending again, to be delivered once more.

    What they went through stays in their timelines.
    """
    chosen = select(
        ids=ids,
        states=state,
        queue=queue,
        event_type=event_type,
        since=since,
        until=until,
        error=error,
        everything=everything,
    )
    _require(chosen.empty, "replay")
    if from_lake is not None:
        replay_from_lake(chosen_store(context, store), from_lake, chosen, dry_run, yes, json)
        return
    with opened(context, store) as admin:
        work = lambda update: admin.replay(chosen, by=operator(), progress=update)  # noqa: E731
        _Operation("replay", "replayed", dry_run, yes, json).carry_out(admin.preview_replay(chosen), work)


def purge(
    context: typer.Context,
    ids: IdsOption = None,
    state: StatesOption = None,
    queue: QueueOption = None,
    event_type: TypeOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    error: ErrorOption = None,
    everything: AllOption = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Delete published events for good; dead ones only with --state dead or --id.

    Events that are pending or claimed are never purged. Off a terminal it needs --yes.
    """
    chosen = select(
        ids=ids,
        states=state,
        queue=queue,
        event_type=event_type,
        since=since,
        until=until,
        error=error,
        everything=everything,
    )
    _require(chosen.empty, "purge")
    if not (yes or dry_run or sys.stdin.isatty()):
        raise UsageError("purge deletes for good, and off a terminal it needs --yes; --dry-run shows what it would do")
    with opened(context, store) as admin:
        work = lambda update: admin.purge(chosen, progress=update)  # noqa: E731
        _Operation("purge", "purged", dry_run, yes, json).carry_out(admin.preview_purge(chosen), work)


@dataclass(frozen=True, slots=True)
class _Operation:
    """What replay and purge have in common: the preview, the question, the progress, the answer."""

    verb: str
    done: str
    dry_run: bool
    yes: bool
    json: bool

    def carry_out(self, preview: "Preview", work: Callable[[output.Update], int]) -> None:
        if self.dry_run:
            self._show(preview)
            return
        if preview.total and not self.yes and sys.stdin.isatty():
            self._ask(preview)
        with output.progress(f"{self.verb}: {preview.total:,} events", preview.total) as update:
            touched = work(update) if preview.total else 0
        if self.json:
            output.write_json({self.done: touched})
        else:
            output.write(f"{count(touched, 'event')} {self.done}")

    def _show(self, preview: "Preview") -> None:
        if self.json:
            output.write_json(preview.as_json())
            return
        output.write("\n".join([f"would {self.verb} {count(preview.total, 'event')}", *_groups(preview)]))
        if preview.examples:
            output.write("among them:")
            output.show(table(preview.examples))

    def _ask(self, preview: "Preview") -> None:
        for line in _groups(preview):
            output.note(line)
        if not output.confirmed(f"{self.verb} {count(preview.total, 'event')}?"):
            output.note("nothing was done")
            raise typer.Exit(FAILURE)


def _groups(preview: "Preview") -> list[str]:
    """How many of which kind, a line each."""
    lines = [
        output.clean_line(f"  {group.count:>9,}  {group.state.lower():<9}  {group.event_type}, queue {group.queue}")
        for group in preview.groups[:SHOWN_GROUPS]
    ]
    left = len(preview.groups) - len(lines)
    return [*lines, f"  and {count(left, 'more kind')}"] if left > 0 else lines


def _require(empty: bool, verb: str) -> None:
    if empty:
        raise UsageError(
            f"{verb} needs to know which: --id, --state, --queue, --type, --since, --until, --error or --all"
        )
