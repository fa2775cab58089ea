"""Driver of streams without Spark: the applications that it refuses, and the code that it sends to a cluster."""

import sys
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

from penstock import Streams
from penstock.model.errors import NotSupported, UsageError
from penstock.pipeline.spark.code_shipping import parcel_of
from penstock.pipeline.streams.driver import require_reachable, run_streams
from penstock.streams.app import default_key
from penstock.streams.state.registry import open_state


@pytest.mark.parametrize("scheme", ["sqlite", "rocksdb"])
@pytest.mark.parametrize("master", ["spark://127.0.0.1:7077", "yarn", "k8s://https://127.0.0.1:6443"])
def test_state_on_one_machines_disk_is_refused_on_a_cluster(tmp_path: Path, scheme: str, master: str) -> None:
    """The refusal comes before Spark starts: no cluster exists at this address."""
    state = tmp_path / "state"
    app = Streams(state=f"{scheme}:///{state}")
    app.stream("orders", name="total")(lambda event, ctx: None)
    with pytest.raises(UsageError, match="is on the disk of one machine; on a cluster, keep the state in PostgreSQL"):
        run_streams(app, master=master)
    assert not state.exists()


def test_events_on_one_machines_disk_are_refused_on_a_cluster() -> None:
    app = Streams("sqlite:///shop.db", state="postgresql://someone@127.0.0.1/somewhere")
    app.stream("orders", name="total")(lambda event, ctx: None)
    with pytest.raises(
        UsageError, match=r"shop\.db is on the disk of one machine; on a cluster, keep events in PostgreSQL"
    ):
        run_streams(app, master="spark://127.0.0.1:7077")


def test_store_without_staging_is_refused() -> None:
    app = Streams("mysql://someone@127.0.0.1:1/shop", state="postgresql://someone@127.0.0.1/somewhere")
    app.stream("orders", name="total")(lambda event, ctx: None)
    with pytest.raises(NotSupported, match="use a store on PostgreSQL or SQLite"):
        run_streams(app)


@pytest.mark.parametrize(
    ("state", "master"),
    [
        ("sqlite:///state", "local"),
        ("sqlite:///state", "local[*]"),
        ("rocksdb:///state", "local[2,4]"),
        ("sqlite:///state", "local-cluster[2,1,1024]"),
        ("postgresql://someone@127.0.0.1/somewhere", "spark://127.0.0.1:7077"),
    ],
)
def test_state_that_all_tasks_reach_is_taken(state: str, master: str) -> None:
    require_reachable(open_state(state), master)


@pytest.mark.parametrize(
    ("names", "told"),
    [(["totl"], "stream 'totl' is not defined; defined streams: total"), (None, "application has no streams")],
)
def test_streams_that_are_not_there_are_told(names: list[str] | None, told: str) -> None:
    app = Streams()
    if names:
        app.stream("orders", name="total")(lambda event, ctx: None)
    with pytest.raises(UsageError, match=told):
        run_streams(app, names=names)


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Return a function that imports user modules: a package, and a module that imports another module."""
    known = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "ship_package" / "inner").mkdir(parents=True)
    (tmp_path / "ship_package" / "__init__.py").touch()
    (tmp_path / "ship_package" / "inner" / "streams.py").write_text("def handle(event, ctx): ...\n")
    (tmp_path / "ship_package" / "prices.json").write_text("{}")
    (tmp_path / "ship_alone.py").write_text("import ship_beside\ndef handle(event, ctx): ...\n")
    (tmp_path / "ship_beside.py").touch()
    (tmp_path / "ship_not_imported.py").touch()
    yield import_module
    for name in set(sys.modules) - known:
        if name.startswith("ship_"):
            del sys.modules[name]


def names_in(path: Path | None) -> set[str]:
    assert path is not None
    with zipfile.ZipFile(path) as archive:
        return set(archive.namelist())


def test_a_package_goes_as_a_whole(modules: Callable[[str], Any]) -> None:
    handle = modules("ship_package.inner.streams").handle
    wanted = {"ship_package/__init__.py", "ship_package/inner/streams.py", "ship_package/prices.json"}
    assert names_in(parcel_of([handle, default_key])) == wanted
    assert names_in(parcel_of([partial(handle, None)])) == wanted


def test_a_module_goes_with_what_was_imported_from_beside_it(modules: Callable[[str], Any]) -> None:
    handle = modules("ship_alone").handle
    assert names_in(parcel_of([handle])) == {"ship_alone.py", "ship_beside.py"}


def test_what_is_installed_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    in_the_script = lambda event: "a"  # noqa: E731
    in_the_script.__module__ = "__main__"
    assert parcel_of([default_key, itemgetter("a"), pytest.fixture, in_the_script]) is None
