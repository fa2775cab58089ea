"""The doctor's checks on healthy and on faulty stores."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from penstock.admin import doctor
from penstock.admin.doctor import Check, Level, examine, healthy
from penstock.model.errors import PipelineError
from penstock.model.event import Event
from penstock.store.registry import open_store
from penstock.store.sql.store import SqlStore


def by_name(checks: list[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks}


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[SqlStore]:
    """Open a database without Penstock's tables."""
    path = tmp_path / "empty.db"
    path.touch()
    opened = open_store(f"sqlite:///{path}")
    yield opened
    opened.close()


def test_healthy_store_passes_all_checks(store: SqlStore) -> None:
    checks = by_name(examine(store))
    assert {"Python", "extras", "store", "schema", "clock", "leases", "snapshots"} <= checks.keys()
    assert [checks[name].level for name in ("store", "schema", "clock", "leases", "snapshots")] == [Level.OK] * 5


def test_missing_tables_fail_and_name_init_command(empty: SqlStore) -> None:
    checks = examine(empty)
    assert checks[-1].name == "schema"
    assert checks[-1].level is Level.FAIL
    assert "penstock init" in checks[-1].detail
    assert not healthy(checks)


def test_missing_store_fails(tmp_path: Path) -> None:
    missing = open_store(f"sqlite:///{tmp_path / 'nowhere' / 'x.db'}")
    last = examine(missing)[-1]
    assert (last.name, last.level) == ("store", Level.FAIL)
    assert "does not exist" in last.detail


def test_expired_leases_are_warning(store: SqlStore, an_hour_ago: SqlStore) -> None:
    an_hour_ago.append([Event(event_type="t")])
    an_hour_ago.claim("outbox", limit=1, claimant="gone", lease_seconds=60.0)
    check = by_name(examine(store))["leases"]
    assert check.level is Level.WARN
    assert "penstock reap" in check.detail


def test_clock_skew_is_warning(an_hour_ago: SqlStore) -> None:
    check = by_name(examine(an_hour_ago))["clock"]
    assert check.level is Level.WARN
    assert "1 h" in check.detail or "59 min" in check.detail


def test_spark_without_java_fails(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark")

    def none_found() -> Path:
        raise PipelineError("no Java: set JAVA_HOME")

    monkeypatch.setattr(doctor, "find_java", none_found)
    check = by_name(examine(store))["Java"]
    assert (check.level, check.detail) == (Level.FAIL, "no Java: set JAVA_HOME")


def test_missing_spark_is_warning_only(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "find_spec", lambda _: None)
    checks = examine(store)
    assert by_name(checks)["Spark"].level is Level.WARN
    assert "penstock[spark]" in by_name(checks)["Spark"].detail
    assert "Java" not in by_name(checks)
    assert healthy(checks)


def test_newer_schema_fails_and_asks_for_upgrade(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(store), "versions", lambda _: ("0999", "0001"))
    check = by_name(examine(store))["schema"]
    assert check.level is Level.FAIL
    assert "upgrade Penstock" in check.detail


def test_older_schema_is_warning(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(store), "versions", lambda _: ("0001", "0002"))
    check = by_name(examine(store))["schema"]
    assert check.level is Level.WARN
    assert "penstock init" in check.detail


def test_query_delay_is_not_clock_skew(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = datetime.now(UTC) + timedelta(seconds=1)
    monkeypatch.setattr(type(store), "now", lambda _: slow)
    assert by_name(examine(store))["clock"].level is Level.OK
