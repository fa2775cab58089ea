"""Benchmarks with minimal sizes: all figures are present and consistent."""

import json
from math import isclose

import pytest

from benchmarks.compare import compare
from benchmarks.plan import Figure, Part, Plan, at_least, at_most
from benchmarks.report import Report
from penstock.model.errors import MissingDriver, PenstockError
from tests.support.installations import find_kafka, find_rabbitmq
from tests.support.servers import PostgresServer

SMALL = Plan(
    events=2_000,
    warm_up=200,
    rounds=1,
    batch=100,
    tries=2_000,
    latency_events=20,
    latency_per_second=50,
    cold_starts=1,
    few_pending=1_000,
    many_pending=3_000,
    claims=3,
)


NAMES = [
    "bulk emit",
    "PgQueuer's bulk enqueue",
    "emit / PgQueuer",
    "claim of 100 at 1,000 pending",
    "claim of 100 at 3,000 pending",
    "claim of 100, many / few pending",
    "claim of 1,000 at 1,000 pending",
    "claim of 1,000 at 3,000 pending",
    "claim of 1,000, many / few pending",
    "workers",
    "PgQueuer's workers",
    "workers / PgQueuer",
    "commit to handler, p50",
    "commit to handler, p99",
    "cold start, caches warm",
    "cold start, first run ever",
    "relay",
    "raw moves",
    "PgQueuer",
    "relay / PgQueuer",
    "relay / raw moves",
    "relay, CPU time",
    "raw moves, CPU time",
    "PgQueuer, CPU time",
    "latency, p50",
    "latency, p95",
    "latency, p99",
    "relay, 20 events a key",
    "relay, no keys",
    "with keys / without",
]


@pytest.fixture(scope="module")
def report(postgres_server: PostgresServer) -> Report:
    """One minimal run of all benchmarks. The relay shares the Spark session of this process, if one exists."""
    from benchmarks.run import run_parts

    return run_parts(postgres_server, SMALL)


def values(report: Report) -> dict[str, float]:
    return {figure.name: figure.value for figure in report.figures}


def is_here(broker: str) -> bool:
    """Return whether the broker is installed: `make services` installs some of them."""
    find = {"Kafka": find_kafka, "RabbitMQ": find_rabbitmq}.get(broker)
    try:
        return find is None or bool(find())
    except MissingDriver:
        return False


@pytest.mark.slow
@pytest.mark.spark
def test_report_has_figures_of_every_part(report: Report) -> None:
    assert set(report.parts) == set(Part)
    assert list(values(report)) == [
        *NAMES,
        *(
            figure.format(name)
            for name in ("Kafka", "NATS", "Valkey", "RabbitMQ")
            for figure in ("relay to {}", "plain loop to {}", "relay / loop, {}")
            if is_here(name)
        ),
    ]
    assert all(value > 0 for value in values(report).values())


@pytest.mark.slow
@pytest.mark.spark
def test_ratios_and_percentiles_are_consistent(report: Report) -> None:
    figures = values(report)
    assert isclose(figures["relay / PgQueuer"], figures["relay"] / figures["PgQueuer"])
    assert isclose(figures["relay / raw moves"], figures["relay"] / figures["raw moves"])
    assert isclose(figures["emit / PgQueuer"], figures["bulk emit"] / figures["PgQueuer's bulk enqueue"])
    assert isclose(figures["workers / PgQueuer"], figures["workers"] / figures["PgQueuer's workers"])
    assert figures["commit to handler, p50"] <= figures["commit to handler, p99"]
    assert figures["latency, p50"] <= figures["latency, p95"] <= figures["latency, p99"]
    assert report.parts[Part.LATENCY].details["events"] == SMALL.latency_events


@pytest.mark.slow
@pytest.mark.spark
def test_report_renders_as_table_and_json(report: Report) -> None:
    document = json.loads(report.to_json())
    assert [figure["name"] for figure in document["figures"]] == list(values(report))
    assert document["machine"]["cores"] >= 1
    assert document["postgresql"]["server_version"]
    assert set(document["details"]) == set(Part)
    rows = report.to_text().splitlines()
    assert all(any(row.startswith(f"| {name} ") for row in rows) for name in values(report))


def test_target_is_lower_or_upper_bound() -> None:
    assert Figure("rate", 5.0, "times", at_least(4.5)).reached is True
    assert Figure("rate", 4.0, "times", at_least(4.5)).reached is False
    assert Figure("delay", 4.0, "s", at_most(4.5)).reached is True
    assert Figure("delay", 5.0, "s", at_most(4.5)).reached is False
    assert Figure("rate", 5.0, "events/s").reached is None


@pytest.mark.slow
def test_compare_gives_cpu_time_of_both_versions(capsys: pytest.CaptureFixture[str]) -> None:
    compare("HEAD", events=1_000, pairs=1, only=["emit", "worker"], as_json=True)
    measured = json.loads(capsys.readouterr().out)
    assert [(name, len(pairs)) for name, pairs in measured.items()] == [("emit", 1), ("worker", 1)]
    assert all(micros > 0 for pairs in measured.values() for pair in pairs for micros in pair)


def test_compare_names_unknown_workload_and_commit() -> None:
    with pytest.raises(PenstockError, match="unknown workload 'swim'; supported: emit, emit one, relay, worker"):
        compare("HEAD", events=1_000, pairs=1, only=["swim"], as_json=True)
    with pytest.raises(PenstockError, match="no-such-commit"):
        compare("no-such-commit", events=1_000, pairs=1, only=["emit"], as_json=True)
