"""`penstock relay` and `demo` up to the start of Spark: options, and errors that are reported before the start."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.commands import relay as command
from penstock.model.retry import RetryPolicy
from penstock.pipeline.relay import driver as pipeline
from penstock.pipeline.relay.report import RelayReport
from penstock.pipeline.relay.spec import RelayOptions
from penstock.store.sql.store import SqlStore

Run = Callable[..., Any]


@pytest.fixture
def relayed(monkeypatch: pytest.MonkeyPatch) -> list[RelayOptions]:
    """Collect the options of the relay instead of starting Spark."""
    kept: list[RelayOptions] = []

    def run_relay(options: RelayOptions, progress: Callable[[RelayReport], None] | None = None) -> RelayReport:
        kept.append(options)
        report = RelayReport(claimed=1_003, published=1_000, retried=2, dead=1, slices=1, seconds=2.25)
        if progress is not None:
            progress(report)
        return report

    monkeypatch.setattr(pipeline, "run_relay", run_relay)
    return kept


@pytest.mark.usefixtures("store")
def test_defaults_equal_those_of_relay_options(penstock: Run, relayed: list[RelayOptions]) -> None:
    assert penstock("relay", "--to", "null:", "--once").code == 0
    assert relayed == [RelayOptions(store="sqlite:///penstock.db", destination="null:", once=True)]


def test_every_relay_option_has_command_line_option() -> None:
    typed = {"destination": "to", "routes": "route", "retry": "retry_delay"}
    missing = [field.name for field in fields(RelayOptions) if typed.get(field.name, field.name) not in _parameters()]
    assert missing == []


def _parameters() -> set[str]:
    return set(signature(command.relay).parameters)


@pytest.mark.usefixtures("store")
def test_command_line_options_reach_relay(penstock: Run, relayed: list[RelayOptions]) -> None:
    options = "--queue q --batch 5 --parallelism 3 --lease-seconds 9 --max-attempts 4 --retry-delay 0.2 --topic {queue}"
    options += " --step operator:itemgetter --dropped release"
    options += " --master spark://h:7077 --checkpoint folder --slice-seconds 2 --order-policy skip --max-deliveries 6"
    assert penstock("relay", "--to", "null:", *options.split()).code == 0
    (seen,) = relayed
    assert (seen.queue, seen.batch, seen.parallelism, seen.lease_seconds, seen.slice_seconds) == ("q", 5, 3, 9.0, 2.0)
    assert seen.retry == RetryPolicy(max_attempts=4, initial_seconds=0.2)
    assert (seen.topic, seen.master, seen.checkpoint) == ("{queue}", "spark://h:7077", "folder")
    assert (seen.order_policy, seen.max_deliveries, seen.once) == ("skip", 6, False)
    assert (seen.step, seen.dropped) == ("operator:itemgetter", "release")


@pytest.mark.usefixtures("store")
def test_step_is_imported_from_working_folder(
    penstock: Run, relayed: list[RelayOptions], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("steps_at_hand.py").write_text("def only_paid(events): ...\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert penstock("relay", "--to", "null:", "--step", "steps_at_hand:only_paid").code == 0
    assert relayed[0].step == "steps_at_hand:only_paid"
    del sys.modules["steps_at_hand"]


ROUTES = """
unrouted = "refuse"
[destinations]
archive = "file:///archive"
[[routes]]
types = "orders.*"
to = "archive"
"""


@pytest.mark.usefixtures("store")
def test_routes_come_from_options_or_config_file(penstock: Run, relayed: list[RelayOptions], tmp_path: Path) -> None:
    assert penstock("relay", "--route", "orders.*=file:///x", "--route", "*=null:").code == 0
    (tmp_path / "penstock.toml").write_text(ROUTES)
    assert penstock("relay").code == 0
    (tmp_path / "penstock.toml").rename(tmp_path / "other.toml")
    assert penstock("relay", "--config", "other.toml").code == 0
    assert penstock("relay", "--to", "null:").code == 0
    routes = [each.routes for each in relayed]
    assert [found and found.destinations_of("orders.paid") for found in routes] == [
        ("file-x", "null"),
        ("archive",),
        ("archive",),
        None,
    ]


@pytest.mark.usefixtures("store")
def test_emit_refuses_unrouted_event_type_if_configured(penstock: Run, tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text(ROUTES)
    assert penstock("emit", "orders.paid").code == 0
    ran = penstock("emit", "users.created")
    assert (ran.code, ran.out) == (2, "")
    assert "no route matches event type 'users.created'; add one to penstock.toml" in ran.err


@pytest.mark.usefixtures("store", "relayed")
def test_once_prints_summary(penstock: Run) -> None:
    assert penstock("relay", "--to", "null:", "--once").out == "1,000 published, 2 retried, 1 dead in 2.2 s\n"
    assert penstock("relay", "--to", "null:", "--once", "--json").json == {
        "claimed": 1_003,
        "published": 1_000,
        "discarded": 0,
        "retried": 2,
        "dead": 1,
        "released": 0,
        "lost": 0,
        "routed": 0,
        "seconds": 2.25,
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("", "missing destination; set --to URL, --route 'GLOB=URL' or write a penstock.toml"),
        ("--to null: --route *=null:", "--to, --route and --config are mutually exclusive"),
        ("--route orders", "invalid route 'orders'; expected one such as 'orders.*=kafka://host:9092'"),
        ("--route *=pigeon://x", "unknown destination scheme 'pigeon'; supported: amqp, "),
        ("--config none.toml", "cannot read none.toml"),
        ("--to events", "invalid URL 'events'"),
        ("--to carrier-pigeon://x", "unknown destination scheme 'carrier-pigeon'"),
        ("--to file:///x?colour=red", "unknown option 'colour' for file:; supported: fsync"),
        ("--to null: --batch 0", "--batch"),
        ("--to null: --parallelism -1", "--parallelism"),
        ("--to null: --lease-seconds -5", "lease_seconds must be greater than 0, got -5"),
        ("--to null: --lease-seconds nan", "lease_seconds must be finite, got nan"),
        ("--to null: --slice-seconds 0", "slice_seconds must be greater than 0, got 0"),
        ("--to null: --max-attempts 0", "--max-attempts"),
        ("--to null: --retry-delay -1", "retry_delay must be finite and at least 0, got -1"),
        ("--to null: --topic {colour}", "invalid topic template '{colour}'"),
        ("--to null: --order-policy maybe", "--order-policy"),
        ("--to null: --step steps", "invalid step 'steps'; expected a name such as shop.steps:only_paid"),
        ("--to null: --step no_such_module:f", "module 'no_such_module' not found in "),
        ("--to null: --dropped maybe", "--dropped"),
    ],
)
def test_invalid_options_are_usage_errors_before_start(
    penstock: Run, store: SqlStore, relayed: list[RelayOptions], options: str, message: str
) -> None:
    ran = penstock("relay", *options.split())
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
    assert ran.err.count("\n") == 1
    assert relayed == []


def test_unusable_store_is_reported_before_spark_starts(penstock: Run, relayed: list[RelayOptions]) -> None:
    ran = penstock("relay", "--to", "null:", "--once")
    assert ran.code == 1
    assert "penstock init" in ran.err
    ran = penstock("relay", "--to", "null:", "--store", "postgresql://ann:geheim@127.0.0.1:1/shop")
    assert (ran.code, "geheim" in ran.err) == (1, False)
    assert relayed == []


@pytest.mark.usefixtures("store")
def test_missing_spark_error_names_extra(penstock: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "find_spec", lambda _: None)
    ran = penstock("relay", "--to", "null:")
    assert ran.code == 2
    assert "pip install 'penstock[spark]'" in ran.err


@pytest.mark.usefixtures("store")
def test_option_errors_do_not_import_spark() -> None:
    code = "import sys; from penstock.cli import main; main(['relay', '--to', 'x:']); print('pyspark' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"


def test_demo_refuses_existing_folder(penstock: Run, tmp_path: Path) -> None:
    ran = penstock("demo", "--keep", str(tmp_path))
    assert ran.code == 2
    assert "already exists; choose another folder" in ran.err
