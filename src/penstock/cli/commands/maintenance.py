"""`penstock init`, `reap`, `replay` and `purge`: what changes a store, each shown before it is done."""

import typer

from penstock.admin.text import count
from penstock.cli.commands.lake import FromLakeOption, replay_from_lake
from penstock.cli.terminal import output
from penstock.cli.terminal.confirmation import Operation, require_consent
from penstock.cli.terminal.filters import AllOption, Filters, IdsOption, StatesOption, require_some, takes_filters
from penstock.cli.terminal.options import (
    DryRunOption,
    JsonOption,
    StoreOption,
    YesOption,
    chosen_store,
    opened,
    operator,
)


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
    """Take back the events of expired leases. A running relay or worker does this by itself."""
    with opened(context, store) as admin, output.progress("reaping") as update:
        taken = admin.reap(progress=update)
    if json:
        output.write_json({"reaped": taken})
    else:
        output.write(f"{count(taken, 'event')} reaped")


@takes_filters
def replay(
    context: typer.Context,
    filters: Filters,
    ids: IdsOption = None,
    state: StatesOption = None,
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
    chosen = filters.select(ids=ids, states=state, everything=everything)
    require_some(chosen, "replay")
    if from_lake is not None:
        replay_from_lake(chosen_store(context, store), from_lake, chosen, dry_run, yes, json)
        return
    with opened(context, store) as admin:
        work = lambda update: admin.replay(chosen, by=operator(), progress=update)  # noqa: E731
        Operation("replay", "replayed", dry_run, yes, json).carry_out(admin.preview_replay(chosen), work)


@takes_filters
def purge(
    context: typer.Context,
    filters: Filters,
    ids: IdsOption = None,
    state: StatesOption = None,
    everything: AllOption = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Delete published events for good; dead ones only with --state dead or --id.

    Events that are pending or claimed are never purged. Off a terminal it needs --yes.
    """
    chosen = filters.select(ids=ids, states=state, everything=everything)
    require_some(chosen, "purge")
    require_consent("purge", yes or dry_run)
    with opened(context, store) as admin:
        work = lambda update: admin.purge(chosen, progress=update)  # noqa: E731
        Operation("purge", "purged", dry_run, yes, json).carry_out(admin.preview_purge(chosen), work)
