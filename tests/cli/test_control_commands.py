"""`penstock pause`, `resume`, `limit` and `cancel`, and their effect on status, show and doctor."""

import json
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from terminal import Start, Terminal

from penstock.admin import doctor
from penstock.model.event import Event, EventId
from penstock.model.outcome import Dead, Published
from penstock.model.stats import Relay
from penstock.store.sql.store import SqlStore

Run = Callable[..., Any]
Settled = Callable[..., str]
Emitted = Callable[..., EventId]


@pytest.fixture(autouse=True)
def _ann(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "ann")


def counts(store: SqlStore) -> dict[str, int]:
    stats = store.stats()
    return {name: stats.total(name) for name in ("pending", "claimed", "published", "dead") if stats.total(name)}


# Queues


def test_paused_queue_gives_no_events_until_resumed(penstock: Run, store: SqlStore, emitted: Emitted) -> None:
    emitted(queue="mail")
    ran = penstock("pause", "mail")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("queue mail is paused, since 20")
    assert ran.out.endswith("Z by ann\n")
    assert not store.claim("mail", limit=1, claimant="tester")
    assert penstock("resume", "mail").out == "queue mail is resumed\n"
    again = penstock("resume", "mail")
    assert (again.code, again.out) == (0, "queue mail was not paused\n")
    assert store.claim("mail", limit=1, claimant="tester")


def test_limit_bounds_claimed_events_of_queue(penstock: Run, store: SqlStore) -> None:
    store.append([Event(event_type="t", queue="mail") for _ in range(3)])
    assert penstock("limit", "mail", "1").out == "queue mail has a limit of 1 event claimed at a time\n"
    assert penstock("limit", "mail", "2").out == "queue mail has a limit of 2 events claimed at a time\n"
    assert len(store.claim("mail", limit=9, claimant="tester")) == 2
    assert penstock("limit", "mail", "none").out == "queue mail has no limit\n"
    assert len(store.claim("mail", limit=9, claimant="tester")) == 1


def test_pause_limit_and_resume_print_json(penstock: Run, emitted: Emitted) -> None:
    emitted(queue="mail")
    paused = penstock("pause", "mail", "--json").json
    assert paused == {"queue": "mail", "paused_at": paused["paused_at"], "paused_by": "ann", "max_claimed": None}
    assert penstock("limit", "mail", "7", "--json").json == {**paused, "max_claimed": 7}
    assert penstock("resume", "mail", "--json").json == {"queue": "mail", "resumed": True}
    assert penstock("resume", "mail", "--json").json == {"queue": "mail", "resumed": False}
    assert penstock("limit", "mail", "NONE", "--json").json["max_claimed"] is None


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("command", [["pause", "mial"], ["limit", "mial", "3"]])
def test_queue_without_events_prints_warning(penstock: Run, command: list[str]) -> None:
    ran = penstock(*command, "--json")
    assert ran.code == 0
    assert ran.json["queue"] == "mial"
    assert ran.err == "queue mial has no pending or claimed events; check its name\n"


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["limit", "mail", "many"], "invalid limit 'many'; expected an integer of at least 1, or none"),
        (["limit", "mail", "0"], "limit must be at least 1, got 0; pause the queue"),
        (["limit", "mail", "99999999999"], "limit must be at most"),
        (["limit", "mail"], "Missing argument"),
        (["pause", ""], "queue must have 1 to 255 characters"),
        (["resume"], "Missing argument"),
    ],
)
def test_invalid_queue_arguments_are_usage_errors(penstock: Run, command: list[str], message: str) -> None:
    ran = penstock(*command)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
    assert ran.err.count("\n") == 1


def test_pause_without_tables_names_init_command(penstock: Run) -> None:
    ran = penstock("pause", "mail")
    assert ran.code == 1
    assert "penstock init" in ran.err


# cancel


def test_cancel_by_queue_records_reason(penstock: Run, store: SqlStore, emitted: Emitted) -> None:
    emitted(queue="mail")
    emitted(queue="mail")
    emitted()
    assert penstock("cancel", "--queue", "mail", "--reason", "sent by mistake").out == "2 events cancelled\n"
    assert counts(store) == {"pending": 1, "dead": 2}
    assert [event["queue"] for event in penstock("events", "--error", "by mistake", "--json").json] == ["mail", "mail"]


def test_cancel_selects_by_id_type_and_time(
    penstock: Run, store: SqlStore, an_hour_ago: SqlStore, emitted: Emitted
) -> None:
    an_hour_ago.append([Event(event_type="old")])
    one = emitted()
    emitted("b")
    emitted("c")
    assert penstock("cancel", "--id", str(one), "--json").json == {"cancelled": 1}
    assert penstock("cancel", "--type", "b", "--json").json == {"cancelled": 1}
    assert penstock("cancel", "--until", "30m", "--json").json == {"cancelled": 1}
    assert penstock("cancel", "--since", "30m", "--json").json == {"cancelled": 1}
    assert counts(store) == {"dead": 4}
    assert penstock("cancel", "--all").out == "0 events cancelled\n"


def test_cancel_skips_claimed_events_unless_selected(penstock: Run, store: SqlStore, emitted: Emitted) -> None:
    emitted()
    held = store.claim("outbox", limit=1, claimant="tester")
    emitted()
    assert penstock("cancel", "--all", "--json").json == {"cancelled": 1}
    assert counts(store) == {"claimed": 1, "dead": 1}
    assert penstock("cancel", "--state", "claimed", "--json").json == {"cancelled": 1}
    settled = store.settle(held.lease, {held.events[0].seq: Published()})
    assert settled.lost == {held.events[0].seq}


def test_show_lists_cancellation_with_reason(penstock: Run, emitted: Emitted) -> None:
    one, other = str(emitted()), str(emitted())
    penstock("cancel", "--id", one, "--reason", "sent by mistake")
    penstock("cancel", "--id", other)
    line = penstock("show", one).out.splitlines()[-1]
    assert line.split("Z", 1)[1].split() == ["cancelled", "0", "ann", "sent", "by", "mistake"]
    line = penstock("show", other).out.splitlines()[-1]
    assert line.split("Z", 1)[1].split() == ["cancelled", "0", "ann"]


def test_cancelled_event_can_be_replayed(penstock: Run, store: SqlStore, emitted: Emitted) -> None:
    one = str(emitted())
    penstock("cancel", "--id", one)
    assert penstock("replay", "--id", one).out == "1 event replayed\n"
    assert counts(store) == {"pending": 1}


def test_cancel_dry_run_lists_events_and_changes_nothing(penstock: Run, store: SqlStore, emitted: Emitted) -> None:
    for event_type in ("a", "a", "b"):
        emitted(event_type)
    ran = penstock("cancel", "--all", "--dry-run")
    assert "would cancel 3 events" in ran.out
    assert "2  pending    a, queue outbox" in ran.out
    document = penstock("cancel", "--all", "--dry-run", "--json").json
    assert (document["dry_run"], document["total"], len(document["examples"])) == (True, 3, 3)
    assert counts(store) == {"pending": 3}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "missing selection for cancel"),
        (["--id", "12"], "invalid event id '12'"),
        (["--id", "0197a3c2-7b1e-7c3d-9f00-5a2b8c4d6e1f"], "event 0197a3c2-7b1e-7c3d-9f00-5a2b8c4d6e1f does not exist"),
        (["--state", "dead"], "cancel applies to pending and claimed events only, got state dead"),
        (["--since", "never"], "invalid time 'never'"),
    ],
)
def test_invalid_cancel_options_are_usage_errors(
    penstock: Run, store: SqlStore, emitted: Emitted, options: list[str], message: str
) -> None:
    emitted()
    ran = penstock("cancel", *options, "--yes")
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
    assert ran.err.count("\n") == 1
    assert counts(store) == {"pending": 1}


@pytest.mark.parametrize(("answer", "left"), [("n", {"pending": 1}), ("y", {"dead": 1})])
def test_cancel_asks_for_confirmation_on_terminal(
    process: Start, store: SqlStore, emitted: Emitted, answer: str, left: Any
) -> None:
    emitted()
    terminal = Terminal(process, "cancel", "--all")
    terminal.await_text("cancel 1 event? [y/N]")
    assert "1  pending    order.placed, queue outbox" in terminal.shown
    terminal.type(f"{answer}\n")
    assert terminal.end() == ((0, b"1 event cancelled\n") if answer == "y" else (1, b""))
    assert counts(store) == left


def test_yes_skips_confirmation(process: Start, store: SqlStore, emitted: Emitted) -> None:
    emitted()
    assert Terminal(process, "cancel", "--all", "--yes").end() == (0, b"1 event cancelled\n")
    assert counts(store) == {"dead": 1}


# status, show and doctor


def test_status_shows_pauses_and_limits(penstock: Run, emitted: Emitted) -> None:
    emitted(queue="mail")
    emitted(queue="orders")
    plain = penstock("status").out
    assert "limit" not in plain
    assert "paused" not in plain
    penstock("pause", "mail")
    penstock("limit", "orders", "1200")
    lines = {line.split()[0]: line for line in penstock("status").out.splitlines() if line.strip()}
    assert lines["queue"].split()[-2:] == ["limit", "paused"]
    assert " ·   since 20" in lines["mail"]
    assert lines["mail"].endswith("Z by ann")
    assert lines["orders"].split()[-2:] == ["1,200", "·"]
    assert "! queue mail has been paused since 20" in penstock("status").out
    mail, orders = penstock("status", "--json").json["queues"]
    assert (mail["paused_by"], mail["max_claimed"]) == ("ann", None)
    assert (orders["paused_at"], orders["max_claimed"]) == (None, 1_200)


def test_reached_limit_is_not_reported_as_problem(penstock: Run, store: SqlStore, an_hour_ago: SqlStore) -> None:
    an_hour_ago.append([Event(event_type="t") for _ in range(2)])
    store.limit("outbox", 1)
    store.claim("outbox", limit=1, claimant="tester")
    store.announce(Relay(uuid4(), "outbox", "worker here:1:a0b1c2", "here"))
    assert "\n- queue outbox has reached its limit of 1 claimed at a time" in penstock("status").out


def test_status_lists_workers_apart_from_relays(penstock: Run, store: SqlStore) -> None:
    for process, queue in ((1, "mail"), (1, "orders"), (2, "mail")):
        store.announce(Relay(uuid4(), queue, f"worker here:{process}:a0b1c2", "here"))
    store.announce(Relay(uuid4(), "outbox", "null:", "there"))
    out = penstock("status").out
    assert "relay on there: outbox to null:, seen 0." in out
    assert "2 workers on here: mail, orders, seen 0." in out
    assert out.count("seen") == 2
    kinds = [relay["kind"] for relay in penstock("status", "--json").json["relays"]]
    assert kinds == ["worker", "worker", "worker", "relay"]


def test_show_prints_progress_and_result(penstock: Run, store: SqlStore, emitted: Emitted) -> None:
    event_id = str(emitted())
    assert "progress" not in penstock("show", event_id).out
    claim = store.claim("outbox", limit=1, claimant="tester")
    store.note(claim.lease, {claim.events[0].seq: b"half way\x1b[2J"})
    store.settle(claim.lease, {claim.events[0].seq: Published(b'{"rows":[1]}')})
    out = penstock("show", event_id).out
    assert "\nprogress\nhalf way\\u001b[2J\n" in out
    assert '\nresult\n{\n  "rows": [\n' in out
    shown = penstock("show", event_id, "--json").json
    assert json.loads(shown["result"]) == {"rows": [1]}


def test_show_prints_size_of_binary_result(penstock: Run, settled: Settled) -> None:
    event_id = settled(Published(b"\xff" * 1_500))
    assert "\nresult: 1,500 bytes, not UTF-8; use --json to print base64\n" in penstock("show", event_id).out
    assert penstock("show", event_id, "--json").json["result_encoding"] == "base64"


def test_show_of_dead_event_has_null_progress_and_result(penstock: Run, settled: Settled) -> None:
    shown = penstock("show", settled(Dead("no")), "--json").json
    assert (shown["progress"], shown["result"]) == (None, None)


def test_doctor_names_resume_command_for_paused_queue(
    penstock: Run, emitted: Emitted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_installation", lambda: iter(()))
    emitted(queue="mail")
    penstock("pause", "mail")
    ran = penstock("doctor")
    assert ran.code == 0
    assert "!  warn  queues     queue mail has been paused since 20" in ran.out
    assert "with 1 ready event: penstock resume mail" in ran.out
