"""`penstock init`, `reap`, `replay` and `purge`: commands that change a store. Replay and purge have a preview."""

from penstock.admin.text import count
from penstock.cli.commands.lake import FromLakeOption, replay_from_lake
from penstock.cli.terminal import output
from penstock.cli.terminal.confirmation import Consent, Operation
from penstock.cli.terminal.filters import Choice
from penstock.cli.terminal.options import Call, operator, takes_options


@takes_options
def init(call: Call) -> None:
    """Create or upgrade Penstock's tables. Safe to repeat."""
    with call.opened() as admin, output.waiting("creating the tables"):
        upgrade = admin.initialise()
        url = admin.store.url
    if not upgrade.steps:
        text = f"{url} is up to date, at version {upgrade.after}"
    elif upgrade.before is None:
        text = f"{url} is ready, at version {upgrade.after}"
    else:
        text = f"{url} was upgraded from version {upgrade.before} to {upgrade.after}: {'; '.join(upgrade.steps)}"
    call.answer({"store": url, "before": upgrade.before, "after": upgrade.after, "steps": list(upgrade.steps)}, text)


@takes_options
def reap(call: Call) -> None:
    """Return the events of expired leases to their queues. A running relay or worker does this automatically."""
    with call.opened() as admin, output.progress("reaping") as update:
        taken = admin.reap(progress=update)
    call.answer({"reaped": taken}, f"{count(taken, 'event')} reaped")


@takes_options
def replay(choice: Choice, consent: Consent, from_lake: FromLakeOption = None, *, call: Call) -> None:
    """Make published and dead events pending again, to deliver them once more.

    Their timelines keep the earlier history.
    """
    chosen = choice.require("replay")
    if from_lake is not None:
        replay_from_lake(call, from_lake, chosen, consent)
        return
    with call.opened() as admin:
        work = lambda update: admin.replay(chosen, by=operator(), progress=update)  # noqa: E731
        Operation("replay", "replayed", call, consent).carry_out(admin.preview_replay(chosen), work)


@takes_options
def purge(choice: Choice, consent: Consent, call: Call) -> None:
    """Delete published events permanently; dead events only with --state dead or --id.

    Pending and claimed events are never purged. Needs --yes if standard input is not a terminal.
    """
    chosen = choice.require("purge")
    consent.require("purge")
    with call.opened() as admin:
        work = lambda update: admin.purge(chosen, progress=update)  # noqa: E731
        Operation("purge", "purged", call, consent).carry_out(admin.preview_purge(chosen), work)
