"""`penstock broker`: serves a queue on object storage from a dedicated process."""

import threading
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.terminal import output
from penstock.cli.terminal.options import StoreOption, chosen_store
from penstock.model.errors import StoreUnavailable, UsageError
from penstock.runtime.signals import stopped_by_signals
from penstock.telemetry import log

if TYPE_CHECKING:
    from penstock.store.objects.store import ObjectStore

TEND_SECONDS = 1.0
WAIT_SECONDS = "5"
STANDING_BY = "standing by: another process is the broker"

ListenOption = Annotated[
    str | None,
    typer.Option("--listen", metavar="HOST:PORT", help="Address to listen on; default a free port on 127.0.0.1."),
]
AdvertiseOption = Annotated[
    str | None,
    typer.Option("--advertise", metavar="HOST:PORT", help="Address announced to clients; default the listen address."),
]


def broker(
    context: typer.Context,
    listen: ListenOption = None,
    advertise: AdvertiseOption = None,
    store: StoreOption = None,
) -> None:
    """Serve a queue on object storage until interrupted. Of several brokers, one serves and the others stand by."""
    stopped = threading.Event()
    with closing(_opened(chosen_store(context, store), listen, advertise)) as opened, stopped_by_signals(stopped):
        opened.maintain()  # take the broker lease, or connect to the broker that holds it
        with output.waiting("connecting to the broker") as say:
            before = ""
            while True:
                now = _standing(opened)
                if now != before:
                    output.note(now)
                before = now
                if now != STANDING_BY:
                    say(_counts(opened))
                if stopped.wait(TEND_SECONDS):
                    break
                _tend(opened)


def _tend(store: "ObjectStore") -> None:
    try:
        store.maintain()
    except StoreUnavailable as error:
        log.warn("store_unavailable", error=error)


def _opened(url: str, listen: str | None, advertise: str | None) -> "ObjectStore":
    from penstock.store.api import StoreOptions
    from penstock.store.objects.store import ObjectStore
    from penstock.store.registry import open_store

    # Use short time-outs, so that a signal ends the process soon even while the bucket is unreachable.
    given = {"broker": "auto", "listen": listen, "advertise": advertise, "wait_seconds": WAIT_SECONDS}
    settings = {name: value for name, value in given.items() if value is not None}
    store = open_store(url, StoreOptions(settings=settings))
    if isinstance(store, ObjectStore):
        return store
    store.close()
    raise UsageError(
        f"{store.url} does not support brokers; use a store on object storage, such as objects+s3://bucket/prefix"
    )


def _standing(store: "ObjectStore") -> str:
    committer = store.runtime.committer
    if committer is None or not committer.leads:
        return STANDING_BY
    return f"serving {store.url} at {committer.address}"


def _counts(store: "ObjectStore") -> str:
    stats = store.stats()
    counts = ", ".join(f"{stats.total(name):,} {name}" for name in ("pending", "claimed", "published", "dead"))
    committer = store.runtime.committer
    return f"{counts}; {0 if committer is None else committer.writes:,} writes"
