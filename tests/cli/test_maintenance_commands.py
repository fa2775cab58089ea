"""`penstock init`, `reap`, `replay` and `purge`: previews, confirmations and effects."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from terminal import Start, Terminal

from penstock.model.event import Event
from penstock.model.outcome import Dead
from penstock.store.sql.migrate import head
from penstock.store.sql.store import SqlStore

Run = Callable[..., Any]
Settled = Callable[..., str]


def counts(store: SqlStore) -> dict[str, int]:
    stats = store.stats()
    return {name: stats.total(name) for name in ("pending", "published", "dead") if stats.total(name)}


def test_init_reports_versions_and_steps(penstock: Run, tmp_path: Path) -> None:
    version = head("sqlite")
    first = penstock("init", "--json").json
    assert (first["before"], first["after"]) == (None, version)
    assert first["steps"][-1].startswith(version)
    assert penstock("init", "--json").json["steps"] == []
    assert penstock("init").out == f"sqlite:///penstock.db is up to date, at version {version}\n"
    assert penstock("init", "--store", "sqlite:///b.db").out == f"sqlite:///b.db is ready, at version {version}\n"


def test_init_in_missing_folder_is_error(penstock: Run) -> None:
    ran = penstock("init", "--store", "sqlite:///no/such/folder/x.db")
    assert ran.code == 1
    assert "folder no/such/folder does not exist" in ran.err


def test_reap_returns_events_of_expired_leases(penstock: Run, an_hour_ago: SqlStore) -> None:
    an_hour_ago.append([Event(event_type="t") for _ in range(3)])
    an_hour_ago.claim("outbox", limit=3, claimant="gone", lease_seconds=60.0)
    assert penstock("reap").out == "3 events reaped\n"
    assert penstock("reap", "--json").json == {"reaped": 0}


# replay


def test_replay_selects_by_state(penstock: Run, store: SqlStore, settled: Settled) -> None:
    settled()
    settled(Dead("no"))
    ran = penstock("replay", "--state", "dead")
    assert (ran.code, ran.out) == (0, "1 event replayed\n")
    assert counts(store) == {"pending": 1, "published": 1}


def test_replay_by_id_records_user_in_timeline(
    penstock: Run, store: SqlStore, settled: Settled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "ann")
    first, second, _ = settled(), settled(), settled()
    assert penstock("replay", "--id", first, "--id", second, "--json").json == {"replayed": 2}
    line = penstock("show", first, "--json").json["timeline"][1]
    assert (line["what"], line["by"], line["detail"]) == ("replayed", "ann", "was PUBLISHED")


def test_replay_all_covers_all_states_and_queues(penstock: Run, store: SqlStore, settled: Settled) -> None:
    settled()
    settled(Dead("no"), queue="mail")
    assert penstock("replay", "--all", "--json").json == {"replayed": 2}
    assert counts(store) == {"pending": 2}


def test_replay_without_matches_succeeds(penstock: Run, store: SqlStore) -> None:
    assert penstock("replay", "--queue", "empty").out == "0 events replayed\n"


@pytest.mark.parametrize("verb", ["replay", "purge"])
def test_dry_run_lists_events_and_changes_nothing(penstock: Run, store: SqlStore, settled: Settled, verb: str) -> None:
    for event_type in ("a", "a", "b"):
        settled(Dead("no"), event_type)
    before = counts(store)
    ran = penstock(verb, "--state", "dead", "--dry-run")
    assert ran.code == 0
    assert f"would {verb} 3 events" in ran.out
    assert "2  dead       a, queue outbox" in ran.out
    document = penstock(verb, "--state", "dead", "--dry-run", "--json").json
    assert (document["dry_run"], document["total"]) == (True, 3)
    assert [(group["event_type"], group["count"]) for group in document["groups"]] == [("a", 2), ("b", 1)]
    assert len(document["examples"]) == 3
    assert counts(store) == before


# purge


def test_purge_requires_yes_without_terminal(penstock: Run, store: SqlStore, settled: Settled) -> None:
    settled()
    ran = penstock("purge", "--all")
    assert ran.code == 2
    assert "requires --yes" in ran.err
    assert counts(store) == {"published": 1}


def test_purge_keeps_dead_events_unless_selected(penstock: Run, store: SqlStore, settled: Settled) -> None:
    settled()
    one, _ = settled(Dead("no")), settled(Dead("no"))
    assert penstock("purge", "--all", "--yes").out == "1 event purged\n"
    assert counts(store) == {"dead": 2}
    assert penstock("purge", "--id", one, "--yes", "--json").json == {"purged": 1}
    assert penstock("purge", "--state", "dead", "--yes", "--json").json == {"purged": 1}
    assert counts(store) == {}


def test_purge_selects_by_age(penstock: Run, store: SqlStore, an_hour_ago: SqlStore, settled: Settled) -> None:
    an_hour_ago.append([Event(event_type="old")])
    settled(event_type="new")
    assert penstock("purge", "--until", "30m", "--yes", "--json").json == {"purged": 1}
    assert [event["event_type"] for event in penstock("events", "--json").json] == ["new"]


@pytest.mark.parametrize("verb", ["replay", "purge"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "missing selection"),
        (["--id", "12"], "invalid event id '12'"),
        (["--id", "0197a3c2-7b1e-7c3d-9f00-5a2b8c4d6e1f"], "event 0197a3c2-7b1e-7c3d-9f00-5a2b8c4d6e1f does not exist"),
        (["--state", "pending"], "only, got state pending"),
        (["--since", "never"], "invalid time 'never'"),
    ],
)
def test_invalid_selections_are_usage_errors(
    penstock: Run, store: SqlStore, settled: Settled, verb: str, options: list[str], message: str
) -> None:
    settled()
    ran = penstock(verb, *options, "--yes")
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
    assert ran.err.count("\n") == 1
    assert counts(store) == {"published": 1}


# On a terminal


@pytest.mark.parametrize("verb", ["replay", "purge"])
def test_declined_confirmation_changes_nothing(process: Start, store: SqlStore, settled: Settled, verb: str) -> None:
    settled()
    terminal = Terminal(process, verb, "--all")
    terminal.await_text(f"{verb} 1 event? [y/N]")
    assert "1  published  order.placed, queue outbox" in terminal.shown
    terminal.type("n\n")
    assert terminal.end() == (1, b"")
    assert counts(store) == {"published": 1}


def test_confirmed_purge_removes_events(process: Start, store: SqlStore, settled: Settled) -> None:
    settled()
    terminal = Terminal(process, "purge", "--all", "--json")
    terminal.await_text("[y/N]")
    terminal.type("y\n")
    assert terminal.end() == (0, b'{\n  "purged": 1\n}\n')
    assert counts(store) == {}


def test_ctrl_c_at_confirmation_changes_nothing(process: Start, store: SqlStore, settled: Settled) -> None:
    settled()
    terminal = Terminal(process, "purge", "--all")
    terminal.await_text("[y/N]")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.end() == (130, b"")
    assert counts(store) == {"published": 1}


def test_yes_skips_confirmation(process: Start, store: SqlStore, settled: Settled) -> None:
    settled()
    terminal = Terminal(process, "purge", "--all", "--yes")
    assert terminal.end() == (0, b"1 event purged\n")
