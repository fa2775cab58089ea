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
def test_local_state_is_refused_on_cluster(tmp_path: Path, scheme: str, master: str) -> None:
    """The refusal comes before Spark starts: no cluster exists at this address."""
    state = tmp_path / "state"
    app = Streams(state=f"{scheme}:///{state}")
    app.stream("orders", name="total")(lambda event, ctx: None)
    with pytest.raises(UsageError, match="is on the disk of one machine; on a cluster, keep the state in PostgreSQL"):
        run_streams(app, master=master)
    assert not state.exists()


def test_local_event_store_is_refused_on_cluster() -> None:
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
def test_state_reachable_by_all_tasks_is_accepted(state: str, master: str) -> None:
    require_reachable(open_state(state), master)


@pytest.mark.parametrize(
    ("names", "message"),
    [(["totl"], "stream 'totl' is not defined; defined streams: total"), (None, "application has no streams")],
)
def test_unknown_or_no_streams_are_usage_errors(names: list[str] | None, message: str) -> None:
    app = Streams()
    if names:
        app.stream("orders", name="total")(lambda event, ctx: None)
    with pytest.raises(UsageError, match=message):
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


def test_package_of_handler_is_shipped_completely(modules: Callable[[str], Any]) -> None:
    handle = modules("ship_package.inner.streams").handle
    wanted = {"ship_package/__init__.py", "ship_package/inner/streams.py", "ship_package/prices.json"}
    assert names_in(parcel_of([handle, default_key])) == wanted
    assert names_in(parcel_of([partial(handle, None)])) == wanted


def test_module_is_shipped_with_imported_sibling_modules(modules: Callable[[str], Any]) -> None:
    handle = modules("ship_alone").handle
    assert names_in(parcel_of([handle])) == {"ship_alone.py", "ship_beside.py"}


def test_installed_modules_are_not_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    in_the_script = lambda event: "a"  # noqa: E731
    in_the_script.__module__ = "__main__"
    assert parcel_of([default_key, itemgetter("a"), pytest.fixture, in_the_script]) is None
