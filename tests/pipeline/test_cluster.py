"""Relay, formats and streams on a standalone Spark cluster, with Penstock shipped to nodes that do not have it."""

import json
import os
import signal
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from relay_processes import (
    BATCH,
    RelayProcess,
    assert_delivered,
    await_settled,
    delivered,
    emit,
    emitting,
)

from penstock.model.selection import Selection
from penstock.outbox import Outbox, connect
from penstock.streams.state.registry import open_state
from tests.support.processes import wait_until
from tests.support.servers import SparkMaster, SparkWorker

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.slow]

START_SECONDS = 180.0
WAIT_SECONDS = 180.0
FORMATS = Path(__file__).with_name("cluster_formats.py")
PENSTOCK = [sys.executable, "-c", "import sys; from penstock.cli import main; sys.exit(main())"]
# The functions are sent to the nodes by name, and the nodes have neither of their modules.
STREAMS = """
from penstock import Streams
from shop_prices import in_cents

app = Streams()


@app.stream("orders", key=lambda event: str(event.json()["number"] % 7), parts=4)
def total(event, ctx):
    ctx.state["sum"] = ctx.state.get("sum", 0) + in_cents(event.json()["number"])
    ctx.emit("order.counted", {}, queue="counted")
"""
PRICES = """
def in_cents(amount):
    return 100 * amount
"""


@dataclass(frozen=True)
class Cluster:
    master: SparkMaster
    workers: tuple[SparkWorker, ...]
    environment: dict[str, str]

    def executors(self) -> list[int]:
        return [pid for worker in self.workers for pid in worker.executors()]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A master and two workers, with a Python that has the client libraries but not Penstock."""
    nodes = tmp_path_factory.mktemp("nodes")
    venv.create(nodes / "python", symlinks=True, with_pip=False)
    python = nodes / "python" / "bin" / "python"
    libraries = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], capture_output=True, text=True
    ).stdout.strip()
    # A .pth file adds only its own paths. It does not process other .pth files, such as that of the editable Penstock.
    Path(libraries, "libraries.pth").write_text(sysconfig.get_path("purelib"))
    assert subprocess.run([python, "-c", "import psycopg, pyspark"], env={}).returncode == 0
    assert subprocess.run([python, "-c", "import penstock"], env={}, capture_output=True).returncode == 1
    with SparkMaster() as master, SparkWorker(master.url) as one, SparkWorker(master.url) as two:
        assert wait_until(lambda: master.workers() == 2, START_SECONDS)
        yield Cluster(master, (one, two), {"PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1"})


@pytest.fixture
def outbox(postgres_url: str) -> Iterator[Outbox]:
    with connect(postgres_url) as opened:
        opened.store.initialise()
        yield opened


def relay(cluster: Cluster, outbox_url: str, folder: Path, name: str) -> RelayProcess:
    return RelayProcess(
        folder / name,
        environment=cluster.environment,
        store=outbox_url,
        destination=f"file://{folder}/out",
        master=cluster.master.url,
    )


def test_no_event_is_lost_if_executor_and_driver_are_killed(
    cluster: Cluster, outbox: Outbox, postgres_url: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    first = emit(outbox, 1)
    with emitting(postgres_url) as ids:
        with relay(cluster, postgres_url, tmp_path, "first") as process:
            assert wait_until(lambda: out.is_dir() and len(delivered(out)) > 500, START_SECONDS), process.log
            os.kill(cluster.executors()[0], signal.SIGKILL)
            process.await_log("Lost executor")
            so_far = len(delivered(out))
            assert wait_until(lambda: len(delivered(out)) > so_far + 500, WAIT_SECONDS), process.log
            os.kill(process.pid, signal.SIGKILL)
        so_far = len(delivered(out))
        second = relay(cluster, postgres_url, tmp_path, "second")
        with second:
            assert wait_until(lambda: len(delivered(out)) > so_far + 500, START_SECONDS), second.log
            emitted = len(ids)
            assert wait_until(lambda: len(ids) > emitted + 500, WAIT_SECONDS)
            second.terminate()
            assert second.wait() == 0, second.log
    with relay(cluster, postgres_url, tmp_path, "third") as third:
        await_settled(outbox.store, third, START_SECONDS)
    # Repeats: events claimed by the killed executor, and events claimed under the killed driver.
    assert_delivered([*first, *ids], delivered(out), repeats=2 * 2 * BATCH)


def test_formats_work_on_cluster(cluster: Cluster, outbox: Outbox, postgres_url: str, tmp_path: Path) -> None:
    emit(outbox, 500)
    ran = subprocess.run(
        [sys.executable, str(FORMATS), cluster.master.url, postgres_url, str(tmp_path)],
        env={**os.environ, **cluster.environment},
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout.splitlines()[-1]) == {"read": 500, "settled": 500, "written": 120, "left": 120}
    assert outbox.store.stats().total("published") == 500


def test_stream_code_is_shipped_to_cluster(cluster: Cluster, outbox: Outbox, postgres_url: str, tmp_path: Path) -> None:
    (tmp_path / "shop_streams.py").write_text(STREAMS)
    (tmp_path / "shop_prices.py").write_text(PRICES)
    outbox.emit_many(outbox.event("order", {"number": number}, queue="orders") for number in range(200))
    places = ["--store", postgres_url, "--state", postgres_url, "--master", cluster.master.url]
    ran = subprocess.run(
        [*PENSTOCK, "streams", "run", "shop_streams:app", "--once", "--json", *places],
        cwd=tmp_path,
        env={**os.environ, **cluster.environment},
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
    )
    assert ran.returncode == 0, ran.stderr
    counts = json.loads(ran.stdout)["streams"]["total"]
    assert (counts["applied"], counts["retried"], counts["dead"]) == (200, 0, 0), ran.stderr
    with closing(open_state(postgres_url)) as state:
        sums = {key: json.loads(saved.data)["sum"] for key, saved in state.read("total")}
    assert sums == {str(key): 100 * sum(range(key, 200, 7)) for key in range(7)}
    assert len(outbox.store.find(Selection(queue="counted"), limit=1_000).records) == 200
