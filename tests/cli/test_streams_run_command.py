"""`penstock streams run` with real Spark in a separate process: first steps of a new user, and shutdown."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.commands.streams import SUPERSEDED
from penstock.model.event import Event
from penstock.store.sql.store import SqlStore
from penstock.streams.state.registry import open_state
from tests.support.processes import command_of, living, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SECONDS = 300.0
STATE = "sqlite:///shop-state"
Run = Callable[..., Any]

# The event controls its handler: wait at a gate that the test opens, fail, or add up the amounts.
SHOP = """
from pathlib import Path
from penstock import Streams
from prices import in_cents

app = Streams(state="sqlite:///shop-state")


@app.stream("orders", key=lambda event: event.json()["customer"], parts=2, retry_seconds=3600)
def total(event, ctx):
    order = event.json()
    if "gate" in order:
        Path(order["gate"] + ".reached").touch()
        open(order["gate"]).read()
    ctx.state["sum"] = ctx.state.get("sum", 0) + in_cents(order["amount"])
    ctx.emit("total.changed", {"sum": ctx.state["sum"]}, queue="totals")
"""


class Driver:
    """A running `streams run` command that leads its own process group, as if started in a terminal."""

    def __init__(self, process: Callable[..., "subprocess.Popen[bytes]"], folder: Path, *arguments: str) -> None:
        self._out, self._err = folder / "driver.out", folder / "driver.err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = process(
                *("streams", "run", "shop:app", *arguments),
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    def await_that(self, holds: Callable[[], bool]) -> None:
        wait_until(lambda: holds() or self.process.poll() is not None, SECONDS)
        assert holds(), self.err

    def wait(self) -> int:
        try:
            return self.process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it didn't end within {SECONDS:g} s:\n{self.err}") from None


@pytest.fixture
def driver(process: Callable[..., "subprocess.Popen[bytes]"], tmp_path: Path) -> Callable[..., Driver]:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "prices.py").write_text("def in_cents(amount):\n    return 100 * amount\n")
    return lambda *arguments: Driver(process, tmp_path, *arguments)


def jvms(driver: Driver) -> list[int]:
    """Return the ids of Spark's JVMs in the driver's session."""
    return [pid for pid in living() if b"pyspark-shell" in command_of(pid) and os.getsid(pid) == driver.process.pid]


def test_killed_jvm_is_one_line_error(driver: Callable[..., Driver], store: SqlStore, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    place(store, "ada", 1, gate=str(gate))
    running = driver("--master", "local[2]")
    running.await_that(Path(f"{gate}.reached").exists)
    (jvm,) = jvms(running)
    os.kill(jvm, signal.SIGKILL)
    assert running.wait() == 1, running.err
    assert re.search(r"lost the connection to Spark's JVM \(\w+\); start again$", running.err, re.MULTILINE), (
        running.err
    )
    with suppress(OSError):  # let the task continue if it still waits at the gate
        os.close(os.open(gate, os.O_WRONLY | os.O_NONBLOCK))


def place(store: SqlStore, customer: str, amount: Any, **fields: str) -> None:
    payload = json.dumps({"customer": customer, "amount": amount, **fields}).encode()
    store.append([Event(event_type="order.placed", queue="orders", payload=payload)])


def totals(penstock: Run) -> dict[str, Any]:
    found = penstock("streams", "state", "total", "--state", STATE, "--json")
    return {line["key"]: line["state"] for line in map(json.loads, found.out.splitlines())}


def test_once_ends_when_no_event_is_ready(penstock: Run, driver: Callable[..., Driver], store: SqlStore) -> None:
    for amount in (1, 2, None, 3):
        place(store, "ada", amount)
    place(store, "bob", 5)
    done = driver("--once", "--master", "local[2]", "--json")
    assert done.wait() == 0, done.err
    counts = json.loads(done.out)["streams"]["total"]
    assert (counts["applied"], counts["retried"], counts["dead"]) == (4, 1, 0)
    assert "SPARK" not in done.err
    assert totals(penstock) == {"ada": {"sum": 600}, "bob": {"sum": 500}}
    assert len(penstock("events", "--queue", "totals", "--json").json) == 4
    (found,) = penstock("streams", "list", "--state", STATE, "--json").json
    assert (found["stream"], found["epoch"], found["parts"]) == ("total", 1, 2)


def test_ctrl_c_completes_batch_in_progress(
    penstock: Run, driver: Callable[..., Driver], store: SqlStore, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    running = driver("--master", "local[2]")
    place(store, "ada", 1)
    running.await_that(lambda: totals(penstock) == {"ada": {"sum": 100}})
    place(store, "ada", 2, gate=str(gate))
    running.await_that(Path(f"{gate}.reached").exists)
    os.killpg(running.process.pid, signal.SIGINT)
    running.await_that(lambda: "stopping hint=" in running.err)
    assert totals(penstock) == {"ada": {"sum": 100}}, "state is what was committed, while the next one is in hand"
    gate.write_text("")
    assert running.wait() == 0, running.err
    assert running.out.startswith("total: 2 applied in ")
    assert "stream_stopped stream=total applied=2 retried=0 dead=0" in running.err
    assert "SPARK" not in running.err
    assert totals(penstock) == {"ada": {"sum": 300}}
    stats = store.stats()
    assert (stats.total("pending"), stats.total("claimed")) == (2, 0), "what was emitted waits; nothing is left leased"


def test_superseded_driver_ends_with_message(penstock: Run, driver: Callable[..., Driver], store: SqlStore) -> None:
    older = driver("--master", "local[2]", "--quiet")
    place(store, "ada", 1)
    older.await_that(lambda: totals(penstock) == {"ada": {"sum": 100}})
    with closing(open_state(STATE)) as state:
        assert state.start("total", 2).epoch == 2
    place(store, "ada", 2)
    assert older.wait() == SUPERSEDED, older.err
    assert older.err == "another driver has started stream 'total'; this one has stopped\n"
    assert totals(penstock) == {"ada": {"sum": 100}}
    assert store.stats().total("claimed") == 0, "the other driver has it at once"
