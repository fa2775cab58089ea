"""`penstock demo`: a shop's orders, delivered from its transaction to files, an outage and a replay included.

Nothing is simulated: for the outage, a file blocks the path of the destination's folder, and deliveries fail.
"""

import json
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.terminal import output
from penstock.cli.terminal.options import event_id
from penstock.model.errors import MissingDriver, UsageError
from penstock.model.lifecycle import State
from penstock.model.retry import RetryPolicy
from penstock.model.selection import Selection

if TYPE_CHECKING:
    from penstock.admin.service import Admin
    from penstock.outbox import Outbox
    from penstock.pipeline import RelayReport

ORDERS = 1_000
INVOICES = 20
IMPATIENT = 13
RETRY_SECONDS = 1.0
DEAD = Selection(states=frozenset({State.DEAD}))


def demo(
    keep: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Keep the demo's files in this new folder.")
    ] = None,
) -> None:
    """Show events delivered, retried, dead and replayed in under a minute. Needs no set-up."""
    from penstock.admin.service import Admin
    from penstock.outbox import connect

    if find_spec("pyspark") is None:
        raise MissingDriver("the demo", "spark")
    started = time.monotonic()
    with _folder(keep) as folder, connect(f"sqlite:///{folder / 'shop.db'}") as outbox:
        shop = _Shop(folder, outbox, Admin(outbox.store))
        for step in (shop.open, shop.sell, shop.roll_back, shop.deliver, shop.suffer, shop.recover, shop.replay):
            step()
        shop.count(time.monotonic() - started)
        if keep is not None:
            output.write(f"\nInspect the result: penstock status --store sqlite:///{folder / 'shop.db'}")


class _Declined(Exception):
    """Business error raised after the order was written."""


class _Shop:
    """Steps of the demo; each prints an explanation and its result."""

    def __init__(self, folder: Path, outbox: "Outbox", admin: "Admin") -> None:
        self.folder = folder
        self.outbox = outbox
        self.admin = admin
        self.steps = 0

    def open(self) -> None:
        self._say("Create Penstock's tables in a shop's database, so that one transaction covers orders and events.")
        self.outbox.store.initialise()
        with self._transaction() as connection:
            connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, amount INTEGER NOT NULL)")
        self._result("penstock init: shop.db is ready")

    def sell(self) -> None:
        self._say(f"Place {ORDERS:,} orders. Each order writes a row and emits an event, in one transaction.")
        with self._transaction() as connection:
            for number in range(1, ORDERS + 1):
                self._order(connection, number)
        self._result(f"committed: {self._orders():,} orders, {self._pending():,} events pending")

    def roll_back(self) -> None:
        self._say("Decline the card of one more order after its event was emitted: the transaction rolls back.")
        with suppress(_Declined), self._transaction() as connection:
            self._order(connection, ORDERS + 1)
            raise _Declined
        self._result(f"rolled back: {self._orders():,} orders, {self._pending():,} events; none for the declined order")

    def deliver(self) -> None:
        self._say("Run a relay on Spark: claim the events under leases, write them to files and settle them.")
        report = self._relay("outbox", "warehouse")
        files = (self.folder / "warehouse").glob("*.jsonl")
        lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        unique = len({line["event_id"] for line in lines})
        self._result(
            f"relayed {report.published:,} in {report.seconds:.1f} s; the files contain {unique:,} distinct events"
        )

    def suffer(self) -> None:
        self._say(
            f"Relay {INVOICES} invoices to a folder that cannot be created, because a file has its name: a real "
            f"outage. Invoice {IMPATIENT} has max_attempts=2; the others use the relay's limit."
        )
        (self.folder / "billing").write_text("in the way\n")
        for number in range(1, INVOICES + 1):
            limit = 2 if number == IMPATIENT else None
            self.outbox.emit("invoice.due", {"invoice": number}, queue="billing", max_attempts=limit)
        for attempt in ("first", "second"):
            self._await_retries()
            report = self._relay("billing", "billing")
            self._result(f"{attempt} attempt: {report.retried} will be retried, {report.dead} dead")

    def recover(self) -> None:
        self._say("End the outage. Events waiting for a retry are delivered; the dead event remains, with its error.")
        (self.folder / "billing").unlink()
        self._await_retries()
        report = self._relay("billing", "billing")
        (dead,) = self.admin.find(DEAD, limit=1).events
        self._result(
            f"{report.published} delivered at the third attempt; dead: {dead['payload']}, {dead['last_error']}"
        )

    def replay(self) -> None:
        self._say("Replay the dead event. Its timeline keeps the earlier history.")
        (dead,) = self.admin.find(DEAD, limit=1).events
        self.admin.replay(DEAD, by="demo")
        report = self._relay("billing", "billing")
        self._result(f"{report.published} delivered; timeline:")
        for entry in self.admin.show(event_id(dead["event_id"]))["timeline"]:
            self._result(f"  {entry['what']:<10} {entry['detail'] or ''}".rstrip())

    def count(self, seconds: float) -> None:
        status = self.admin.status()
        self._say("Check the result: all committed events were delivered, and no others.")
        self._result(
            f"{status.published:,} published, {status.dead} dead, {status.pending} pending, "
            f"{status.claimed} claimed, in {seconds:.0f} s"
        )
        assert (status.published, status.dead, status.pending, status.claimed) == (ORDERS + INVOICES, 0, 0, 0)

    # -- helpers ------------------------------------------------------------------------------------------------

    def _order(self, connection: sqlite3.Connection, number: int) -> None:
        connection.execute("INSERT INTO orders (id, amount) VALUES (?, ?)", (number, 10 * number))
        self.outbox.emit("order.placed", {"order": number, "amount": 10 * number}, connection=connection)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Open a connection of the shop's own database code; commit, or roll back after an exception."""
        with closing(sqlite3.connect(self.folder / "shop.db")) as connection, connection:
            yield connection

    def _relay(self, queue: str, destination: str) -> "RelayReport":
        from penstock.pipeline import RelayOptions, run_relay

        options = RelayOptions(
            store=f"sqlite:///{self.folder / 'shop.db'}",
            destination=(self.folder / destination).as_uri(),
            queue=queue,
            once=True,
            retry=RetryPolicy.constant(RETRY_SECONDS),
        )
        with output.waiting("relaying"):
            return run_relay(options)

    def _await_retries(self) -> None:
        while not self.outbox.store.ready("billing"):
            time.sleep(0.05)

    def _orders(self) -> int:
        with self._transaction() as connection:
            return int(connection.execute("SELECT count(*) FROM orders").fetchone()[0])

    def _pending(self) -> int:
        return self.admin.status().pending

    def _say(self, text: str) -> None:
        self.steps += 1
        output.write(f"\n{self.steps}. {text}")

    def _result(self, text: str) -> None:
        output.write(f"   {output.clean_line(text)}")


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="penstock-demo-", ignore_cleanup_errors=True) as folder:
            yield Path(folder)
        return
    try:
        keep.mkdir(parents=True)
    except FileExistsError as error:
        raise UsageError(f"folder {keep} already exists; choose another folder") from error
    yield keep.resolve()
