"""The admin service on real stores: pause, limit, cancel, and their findings."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import uuid4

import pytest

from penstock import Worker
from penstock.admin.doctor import Check, Level, examine
from penstock.admin.service import Admin
from penstock.model.errors import EventNotFound, UsageError
from penstock.model.event import Event, EventId
from penstock.model.lifecycle import State
from penstock.model.outcome import Published
from penstock.model.selection import Selection
from penstock.store.sql.store import SqlStore
from penstock.store.sql.verbs import control as steering
from tests.support.processes import wait_until

Settled = Callable[..., EventId]
ALL = Selection(everything=True)
CLAIMED = Selection(states=frozenset({State.CLAIMED}))


def only(*ids: EventId) -> Selection:
    return Selection(ids=frozenset(ids))


def queues(admin: Admin) -> Check:
    (check,) = (check for check in examine(admin.store) if check.name == "queues")
    return check


@contextmanager
def working(admin: Admin, url: str, queue: str) -> Iterator[None]:
    """Run a worker on the queue; return once the worker has announced itself."""
    worker = Worker(url)
    worker.handler(queue)(lambda event: None)
    worker.start()
    try:
        assert wait_until(lambda: admin.status().relays != [], 60)
        yield
    finally:
        worker.stop()


# Queues


def test_status_shows_pause_with_time_and_operator(admin: Admin, store: SqlStore) -> None:
    store.append([Event(event_type="t", queue="mail")])
    control = json.loads(json.dumps(admin.pause("mail", by="ada")))
    assert control == {"queue": "mail", "paused_at": control["paused_at"], "paused_by": "ada", "max_claimed": None}
    assert admin.pause("mail", by="bob") == control
    assert [one.queue for one in store.controls()] == ["mail"]
    (status,) = json.loads(json.dumps(admin.status().as_json()))["queues"]
    assert status.items() >= control.items()
    assert status["ready"] == 1
    assert admin.resume("mail")
    assert not admin.resume("mail")
    assert store.controls() == []


def test_limit_bounds_claimed_events(admin: Admin, store: SqlStore) -> None:
    store.append([Event(event_type="t") for _ in range(3)])
    assert admin.limit("outbox", 2)["max_claimed"] == 2
    assert len(store.claim("outbox", limit=10, claimant="tester")) == 2
    assert admin.status().queues[0].max_claimed == 2
    assert admin.limit("outbox", None) == {
        "queue": "outbox",
        "paused_at": None,
        "paused_by": None,
        "max_claimed": None,
    }


def test_controlled_queue_without_events_is_in_status(admin: Admin) -> None:
    admin.pause("mail", by="ada")
    admin.limit("orders", 3)
    assert [(one.queue, one.paused_by, one.max_claimed) for one in admin.status().queues] == [
        ("mail", "ada", None),
        ("orders", None, 3),
    ]
    assert admin.idle("mail")


@pytest.mark.parametrize("limit", [0, -1, 2**31])
def test_invalid_limit_is_refused(admin: Admin, limit: int) -> None:
    with pytest.raises(UsageError, match="limit must be"):
        admin.limit("outbox", limit)


@pytest.mark.parametrize("name", ["", "x" * 256, "a\x00b"])
def test_invalid_queue_name_is_refused(admin: Admin, name: str) -> None:
    for verb in (admin.pause, admin.resume, lambda queue: admin.limit(queue, 1)):
        with pytest.raises(UsageError, match="queue"):
            verb(name)


def test_doctor_warns_of_paused_queue_with_ready_events(admin: Admin, store: SqlStore) -> None:
    assert queues(admin) == Check("queues", Level.OK, "0 paused, 0 limited")
    admin.pause("mail", by="ada")
    assert queues(admin) == Check("queues", Level.OK, "1 paused, 0 limited")
    store.append([Event(event_type="t", queue="mail")])
    check = queues(admin)
    assert check.level is Level.WARN
    assert check.detail.endswith("by ada, with 1 ready event: penstock resume mail")


def test_doctor_reports_limited_queue_with_waiting_events(
    admin: Admin, store: SqlStore, an_hour_ago: SqlStore, url: str
) -> None:
    an_hour_ago.append([Event(event_type="t") for _ in range(3)])
    admin.limit("outbox", 1)
    assert len(store.claim("outbox", limit=3, claimant="tester")) == 1
    with working(admin, url, "outbox"):
        check = queues(admin)
    assert check.level is Level.OK
    assert check.detail.startswith("queue outbox has reached its limit of 1 claimed at a time")


def test_status_lists_workers(admin: Admin, url: str) -> None:
    with working(admin, url, "mail"):
        assert [(one.kind, one.queue, one.alive) for one in admin.status().relays] == [("worker", "mail", True)]


# Events


def test_cancel_preview_counts_by_state_queue_and_type(admin: Admin, store: SqlStore, settled: Settled) -> None:
    settled()
    store.append([Event(event_type="held", queue="mail")])
    store.claim("mail", limit=1, claimant="tester")
    ids = store.append([Event(event_type=name) for name in ("a", "b", "b")])
    document = json.loads(json.dumps(admin.preview_cancel(ALL).as_json()))
    assert document["groups"] == [
        {"state": "PENDING", "queue": "outbox", "event_type": "b", "count": 2},
        {"state": "PENDING", "queue": "outbox", "event_type": "a", "count": 1},
    ]
    assert [event["event_id"] for event in document["examples"]] == [str(one) for one in reversed(ids)]
    assert [(group.state, group.queue) for group in admin.preview_cancel(CLAIMED).groups] == [(State.CLAIMED, "mail")]
    assert admin.preview_cancel(only(ids[0])).total == 1
    assert admin.status().pending == 3


def test_cancel_records_reason_and_operator(admin: Admin, store: SqlStore) -> None:
    one, other = store.append([Event(event_type="t"), Event(event_type="t")])
    assert admin.cancel(only(one), reason="sent by mistake", by="ada") == 1
    shown = admin.show(one)
    assert (shown["state"], shown["last_error"]) == ("DEAD", "sent by mistake")
    line = shown["timeline"][-1]
    assert (line["what"], line["by"], line["detail"]) == ("cancelled", "ada", "sent by mistake")
    admin.cancel(only(other), by="ada")
    line = admin.show(other)["timeline"][-1]
    assert (line["what"], line["by"], line["detail"]) == ("cancelled", "ada", None)


def test_claimed_events_are_cancelled_only_if_selected(admin: Admin, store: SqlStore) -> None:
    (held,) = store.append([Event(event_type="t")])
    store.claim("outbox", limit=1, claimant="tester")
    assert admin.cancel(ALL) == 0
    assert admin.preview_cancel(only(held)).total == 1
    assert admin.cancel(CLAIMED) == 1
    assert admin.show(held)["state"] == "DEAD"


def test_cancel_reports_progress_and_ignores_new_events(
    admin: Admin, store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancel must end although an application keeps emitting events."""
    monkeypatch.setattr(steering, "CANCEL_BATCH", 2)
    store.append([Event(event_type="t") for _ in range(5)])
    heard: list[int] = []

    def emit_more(done: int) -> None:
        heard.append(done)
        store.append([Event(event_type="t")])

    assert admin.cancel(ALL, progress=emit_more) == 5
    assert heard == [2, 4, 5, 5]
    assert (admin.status().dead, admin.status().pending) == (5, 4)


@pytest.mark.parametrize("state", [State.PUBLISHED, State.DEAD])
def test_only_unsettled_events_are_cancelled(admin: Admin, state: State) -> None:
    with pytest.raises(UsageError, match=f"to pending and claimed events only, got state {state.lower()}"):
        admin.cancel(Selection(states=frozenset({state})))


def test_invalid_cancel_changes_nothing(admin: Admin, store: SqlStore) -> None:
    (known,) = store.append([Event(event_type="t")])
    with pytest.raises(EventNotFound):
        admin.cancel(only(known, EventId(uuid4())))
    with pytest.raises(UsageError, match="missing selection for cancel"):
        admin.cancel(Selection())
    assert admin.status().pending == 1


def test_show_returns_progress_and_result(admin: Admin, store: SqlStore) -> None:
    (event_id,) = store.append([Event(event_type="t")])
    shown = admin.show(event_id)
    assert [shown[name] for name in ("progress", "progress_encoding", "result", "result_encoding")] == [None] * 4
    claim = store.claim("outbox", limit=1, claimant="tester")
    seq = claim.events[0].seq
    store.note(claim.lease, {seq: b'{"done": 3}'})
    store.settle(claim.lease, {seq: Published(b"\xff\x00")})
    shown = json.loads(json.dumps(admin.show(event_id)))
    assert (shown["progress"], shown["progress_encoding"]) == ('{"done": 3}', "utf-8")
    assert (shown["result"], shown["result_encoding"]) == ("/wA=", "base64")
