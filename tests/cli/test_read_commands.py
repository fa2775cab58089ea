"""`penstock status`, `events`, `show` and `doctor`: tables, and JSON with --json."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from penstock.admin import doctor
from penstock.model.event import Event, EventId
from penstock.model.outcome import Dead
from penstock.model.stats import Relay
from penstock.store.sql.store import SqlStore

Run = Callable[..., Any]
Settled = Callable[..., str]
Emitted = Callable[..., EventId]


# status


def test_status_prints_json(penstock: Run, store: SqlStore, settled: Settled, emitted: Emitted) -> None:
    settled()
    settled(Dead("timeout"))
    emitted(queue="mail")
    ran = penstock("status", "--json")
    assert (ran.code, ran.err) == (0, "")
    status = ran.json
    wanted = {"pending", "ready", "claimed", "published", "dead", "oldest_pending_seconds", "queues", "open_leases"}
    wanted |= {"expired_leases", "oldest_snapshot_seconds", "relays", "dead_errors", "findings", "store"}
    assert wanted <= status.keys()
    assert (status["pending"], status["published"], status["dead"]) == (1, 1, 1)
    assert status["queues"][0]["queue"] == "mail"


def test_status_prints_relays_and_findings(penstock: Run, store: SqlStore, settled: Settled, emitted: Emitted) -> None:
    settled(Dead("timeout"))
    emitted(queue="mail")
    store.announce(Relay(uuid4(), "mail", "null:", "here:1"))
    out = penstock("status").out
    assert "mail" in out
    assert "relay on here:1: mail to null:, seen 0." in out
    assert "! 1 event is dead; error: timeout: penstock dead list" in out


def test_findings_name_commands(penstock: Run, an_hour_ago: SqlStore) -> None:
    an_hour_ago.append([Event(event_type="t") for _ in range(3)])
    an_hour_ago.claim("outbox", limit=1, claimant="gone", lease_seconds=60.0)
    out = penstock("status").out
    assert "! 2 events are pending in queue outbox and no relay or worker is running: penstock relay --to URL" in out
    assert "! 1 expired lease and no running relay or worker: penstock reap" in out


@pytest.mark.usefixtures("store")
def test_status_of_empty_store_explains_first_step(penstock: Run) -> None:
    out = penstock("status").out
    assert "no events yet; emit one" in out
    assert "no problems found" in out


# events


def test_events_json_has_every_field(penstock: Run, emitted: Emitted) -> None:
    event_id = emitted(payload=b"\xff", headers={"a": "b"}, priority=2)
    (event,) = penstock("events", "--json").json
    assert event["event_id"] == str(event_id)
    assert (event["payload"], event["payload_encoding"], event["headers"]) == ("/w==", "base64", {"a": "b"})
    assert len(event) == 24


@pytest.mark.usefixtures("store")
def test_no_matching_events_print_empty_array(penstock: Run) -> None:
    assert penstock("events", "--json").json == []
    ran = penstock("events")
    assert (ran.code, ran.out, ran.err) == (0, "", "no events match\n")


def test_events_filter_by_state_queue_type_and_error(penstock: Run, settled: Settled, emitted: Emitted) -> None:
    settled(event_type="a")
    settled(Dead("connection refused"), event_type="b")
    settled(Dead("100% wrong"), event_type="c")
    emitted("d", queue="mail")

    def types(*options: str) -> list[str]:
        return [event["event_type"] for event in penstock("events", "--json", *options).json]

    assert types() == ["d", "c", "b", "a"]
    assert types("--state", "dead") == ["c", "b"]
    assert types("--state", "DEAD", "--state", "pending") == ["d", "c", "b"]
    assert types("--queue", "mail") == ["d"]
    assert types("--type", "a") == ["a"]
    assert types("--error", "refused") == ["b"]
    assert types("--error", "0%") == ["c"]


def test_events_filter_by_time(penstock: Run, store: SqlStore, an_hour_ago: SqlStore) -> None:
    an_hour_ago.append([Event(event_type="old")])
    store.append([Event(event_type="new")])

    def types(*options: str) -> list[str]:
        return [event["event_type"] for event in penstock("events", "--json", *options).json]

    half_an_hour_ago = datetime.now(UTC) - timedelta(minutes=30)
    assert types("--since", "30m") == ["new"]
    assert types("--until", "30min") == ["old"]
    assert types("--since", "2h", "--until", "30m") == ["old"]
    assert types("--since", half_an_hour_ago.isoformat()) == ["new"]
    assert types("--until", half_an_hour_ago.astimezone().replace(tzinfo=None).isoformat()) == ["old"]
    assert types("--since", "2090-01-01") == []


def test_events_are_listed_in_pages(penstock: Run, store: SqlStore) -> None:
    store.append([Event(event_type=f"t{number}") for number in range(5)])
    first = penstock("events", "--limit", "2", "--json")
    assert [event["event_type"] for event in first.json] == ["t4", "t3"]
    assert first.err == f"more results: use --after {first.json[-1]['seq']}\n"
    rest = penstock("events", "--json", "--after", str(first.json[-1]["seq"]))
    assert [event["event_type"] for event in rest.json] == ["t2", "t1", "t0"]
    assert rest.err == ""


def test_limit_may_exceed_page_of_store(penstock: Run, store: SqlStore) -> None:
    store.append([Event(event_type="t") for _ in range(1_234)])
    assert len(penstock("events", "--limit", "5000", "--json").json) == 1_234


def test_events_table_shortens_long_errors(penstock: Run, settled: Settled) -> None:
    event_id = settled(Dead("a very long error " * 20))
    out = penstock("events").out
    assert event_id in out
    assert "DEAD" in out
    assert "…" in out


def test_control_characters_of_event_are_escaped(penstock: Run, emitted: Emitted) -> None:
    nasty = "\x1b[2J[red]\x9b1m\u202ebold\n"
    event_id = str(emitted(nasty.strip(), payload=nasty.encode(), headers={nasty: nasty}, queue=nasty))
    for command in (["events"], ["show", event_id], ["status"], ["events", "--json"], ["show", event_id, "--json"]):
        out = penstock(*command).out
        assert not set("\x1b\x9b") & set(out), command
        assert "[red]" in out


# show


def test_show_prints_json_with_timeline(penstock: Run, settled: Settled) -> None:
    event_id = settled(Dead("timeout"))
    shown = penstock("show", event_id, "--json").json
    assert (shown["event_id"], shown["state"], shown["last_error"]) == (event_id, "DEAD", "timeout")
    assert [line["what"] for line in shown["timeline"]] == ["emitted", "died"]
    assert shown["timeline"][1]["by"] == "tester"


def test_show_prints_indented_payload_and_headers(penstock: Run, emitted: Emitted) -> None:
    event_id = emitted(payload=b'{"order":{"id":1}}', headers={"trace": "abc"})
    out = penstock("show", str(event_id)).out
    assert '  "order": {\n    "id": 1\n' in out
    assert "header trace" in out
    assert "emitted" in out


def test_show_prints_binary_payload_in_base64(penstock: Run, emitted: Emitted) -> None:
    assert "in base64" in penstock("show", str(emitted(payload=b"\xff"))).out


# doctor


@pytest.mark.usefixtures("store")
def test_doctor_reports_healthy_store(penstock: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_installation", lambda: iter(()))
    ran = penstock("doctor", "--json")
    assert (ran.code, ran.json["healthy"]) == (0, True)
    assert {check["level"] for check in ran.json["checks"]} == {"ok"}
    assert "✓" in penstock("doctor").out


def test_doctor_fails_without_tables(penstock: Run) -> None:
    ran = penstock("doctor", "--json")
    assert (ran.code, ran.json["healthy"]) == (1, False)
    assert ran.json["checks"][-1]["level"] == "fail"
    people = penstock("doctor")
    assert people.code == 1
    assert "penstock init" in people.out
