"""Every example begins with what it shows, runs unchanged, and prints the output that it ends with."""

import ast
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import penstock
from tests.support.examples import EXAMPLES, output_block, run, without_ids

PROGRAMS = sorted(path.name for path in EXAMPLES.glob("*.py"))


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_example_has_summary_and_output(name: str) -> None:
    text = (EXAMPLES / name).read_text()
    summary = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    assert len(summary.split()) > 5
    assert summary[-1] in ".:"
    assert any(output_block(name))
    assert "penstock.testing" not in text


def test_documentation_index_lists_every_example() -> None:
    index = (EXAMPLES.parent / "docs" / "README.md").read_text()
    files = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb")}
    assert set(re.findall(r"\]\(\.\./examples/([^)]+)\)", index)) == files


@pytest.mark.parametrize("name", ["transactions.py", "claim_and_settle.py", "jobs_over_http.py", "django_orders.py"])
def test_programs_print_documented_output(name: str) -> None:
    assert run(name) == output_block(name)


def test_worker_prints_documented_output(tmp_path: Path) -> None:
    assert run("worker.py", str(tmp_path)) == output_block("worker.py")


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("name", ["spark_stream.py", "relay_with_step.py"])
def test_spark_programs_print_documented_output(name: str, tmp_path: Path) -> None:
    assert run(name, folder=tmp_path) == output_block(name)


@pytest.mark.spark
@pytest.mark.slow
def test_analysis_prints_documented_output_and_writes_plot(tmp_path: Path) -> None:
    output = run("analyse_events.py", "latency.png", folder=tmp_path)
    assert without_measurements(output) == without_measurements(output_block("analyse_events.py"))
    assert (tmp_path / "latency.png").read_bytes().startswith(b"\x89PNG")


def without_measurements(lines: list[str]) -> list[str]:
    """Replace measured seconds and the name of the temporary folder, and the padding of tables around them."""
    text = re.sub(r"\d+\.\d+", "SECONDS", "\n".join(lines))
    text = re.sub(r"'/[^']*/analyse-\w+/", "'FOLDER/", text)
    return re.sub(r"-+\+", "-+", re.sub(r" *\| *", "|", text)).splitlines()


@pytest.fixture(params=["sqlite", "postgresql"])
def shop(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    url = f"sqlite:///{tmp_path}/shop.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    monkeypatch.setenv("PENSTOCK_STORE", url)
    monkeypatch.syspath_prepend(EXAMPLES)
    sys.modules.pop("fastapi_orders", None)
    module: ModuleType = importlib.import_module("fastapi_orders")
    from fastapi.testclient import TestClient

    with TestClient(module.app) as client:
        yield module, client


ORDERS = ({"customer": "ada", "amount": 42}, {"customer": "bob", "amount": 5_000})


def test_fastapi_orders_commit_with_their_events(shop: Any) -> None:
    module, client = shop
    placed, refused = (client.post("/orders", json=order) for order in ORDERS)
    assert (placed.status_code, refused.status_code) == (201, 422)
    assert without_ids([placed.text, refused.text]) == without_ids(output_block("fastapi_orders.py"))

    records = module.outbox.store.find(penstock.Selection(everything=True)).records
    assert [str(record.event_id) for record in records] == [placed.json()["event"]]
    assert records[0].ordering_key == "customer/ada"
    with module.engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT customer FROM orders").scalars().all() == ["ada"]
