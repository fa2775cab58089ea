"""The admin service on real stores: inspection, replay, purge, reap, and results ready for JSON."""

import base64
import json
from collections.abc import Callable
from uuid import uuid4

import pytest

from penstock.admin.service import PAGE, Admin
from penstock.model.errors import EventNotFound, UsageError
from penstock.model.event import Event, EventId
from penstock.model.lifecycle import State
from penstock.model.outcome import Dead, Released, Retry
from penstock.model.selection import Selection
from penstock.model.stats import Relay
from penstock.store.sql.store import SqlStore

Settled = Callable[..., EventId]
DEAD = Selection(states=frozenset({State.DEAD}))


def test_status_counts_events_and_serialises_to_json(admin: Admin, store: SqlStore, settled: Settled) -> None:
    settled()
    settled(Dead("timeout"), queue="mail")
    store.append([Event(event_type="later", delay_seconds=60.0), Event(event_type="now")])
    store.announce(Relay(uuid4(), "outbox", "null:", "here:1"))

    status = json.loads(json.dumps(admin.status().as_json()))

    counts = {name: status[name] for name in ("pending", "ready", "claimed", "published", "dead")}
    assert counts == {"pending": 2, "ready": 1, "claimed": 0, "published": 1, "dead": 1}
    assert [queue["queue"] for queue in status["queues"]] == ["mail", "outbox"]
    assert status["oldest_pending_seconds"] >= 0
    assert status["dead_errors"] == [{"error": "timeout", "count": 1}]
    assert [(relay["queue"], relay["alive"]) for relay in status["relays"]] == [("outbox", True)]
    assert [finding["code"] for finding in status["findings"]] == ["dead"]


def test_show_returns_every_field(admin: Admin, store: SqlStore) -> None:
    event = Event(
        event_type="order.placed", payload='{"ü": 1}'.encode(), headers={"a": "b"}, partition_key="p", priority=3
    )
    (event_id,) = store.append([event])
    shown = json.loads(json.dumps(admin.show(event_id)))
    assert shown["event_id"] == str(event_id)
    assert (shown["payload"], shown["payload_encoding"]) == ('{"ü": 1}', "utf-8")
    assert (shown["headers"], shown["partition_key"], shown["priority"]) == ({"a": "b"}, "p", 3)
    assert shown["state"] == "PENDING"
    assert {"seq", "attempts", "deliveries", "replays", "last_error", "published_at", "claimed_by"} <= shown.keys()


def test_binary_payload_is_shown_in_base64(admin: Admin, store: SqlStore) -> None:
    (event_id,) = store.append([Event(event_type="picture", payload=b"\xff\x00")])
    shown = admin.show(event_id)
    assert shown["payload_encoding"] == "base64"
    assert base64.b64decode(shown["payload"]) == b"\xff\x00"


def test_timeline_lists_all_transitions(admin: Admin, store: SqlStore, settled: Settled) -> None:
    event_id = settled(Retry("refused", 0.0))
    claim = store.claim("outbox", limit=1, claimant="second")
    store.settle(claim.lease, {claim.events[0].seq: Dead("gone")})
    admin.replay(Selection(ids=frozenset({event_id})), by="ann")
    claim = store.claim("outbox", limit=1, claimant="third")

    lines = admin.show(event_id)["timeline"]
    assert [line["what"] for line in lines] == ["emitted", "retried", "died", "replayed", "claimed"]
    assert [line["by"] for line in lines] == [None, "tester", "second", "ann", "third"]
    assert lines[1]["detail"] == "refused"
    assert lines[4]["detail"].startswith("until 20")

    store.settle(claim.lease, {claim.events[0].seq: Released()})
    assert [line["what"] for line in admin.show(event_id)["timeline"]][4:] == ["released", "due"]


def test_timeline_of_published_event_ends_with_published(admin: Admin, settled: Settled) -> None:
    assert [line["what"] for line in admin.show(settled())["timeline"]] == ["emitted", "published"]


def test_show_of_unknown_id_is_error(admin: Admin) -> None:
    with pytest.raises(EventNotFound, match=r"event .* does not exist"):
        admin.show(EventId(uuid4()))


def test_next_page_continues_after_previous_page(admin: Admin, store: SqlStore) -> None:
    ids = store.append([Event(event_type=f"t{number}") for number in range(7)])
    first = admin.find(Selection(), limit=4)
    rest = admin.find(Selection(), after=first.after, limit=4)
    assert [event["event_id"] for event in first.events + rest.events] == [str(one) for one in reversed(ids)]
    assert rest.after is None


def test_pages_return_at_most_limit(admin: Admin, store: SqlStore) -> None:
    store.append([Event(event_type="t") for _ in range(PAGE + 30)])
    pages = list(admin.pages(Selection(), limit=PAGE + 10))
    assert [len(page.events) for page in pages] == [PAGE, 10]
    assert pages[-1].after is not None
    assert sum(len(page.events) for page in admin.pages(Selection(), limit=10_000)) == PAGE + 30


def test_find_limit_of_zero_is_refused(admin: Admin) -> None:
    with pytest.raises(UsageError, match="limit must be at least 1"):
        admin.find(Selection(), limit=0)


def test_replay_preview_counts_events_without_change(admin: Admin, settled: Settled) -> None:
    for event_type in ("a", "a", "b"):
        settled(Dead("no"), event_type)
    settled()
    preview = admin.preview_replay(DEAD)
    document = json.loads(json.dumps(preview.as_json()))
    assert document["total"] == 3
    assert document["groups"] == [
        {"state": "DEAD", "queue": "outbox", "event_type": "a", "count": 2},
        {"state": "DEAD", "queue": "outbox", "event_type": "b", "count": 1},
    ]
    assert {event["state"] for event in document["examples"]} == {"DEAD"}
    assert admin.status().dead == 3


def test_replay_makes_events_pending_and_reports_progress(admin: Admin, settled: Settled) -> None:
    settled(Dead("no"))
    settled()
    heard: list[int] = []
    assert admin.replay(Selection(everything=True), progress=heard.append) == 2
    assert heard[-1] == 2
    assert (admin.status().pending, admin.status().dead) == (2, 0)


def test_purge_keeps_dead_events_unless_selected(admin: Admin, settled: Settled) -> None:
    settled(Dead("no"))
    settled()
    everything = Selection(everything=True)
    assert admin.preview_purge(everything).total == 1
    assert admin.purge(everything) == 1
    assert admin.status().dead == 1
    assert admin.preview_purge(DEAD).total == 1
    assert admin.purge(DEAD) == 1
    assert admin.status().dead == 0


@pytest.mark.parametrize("state", [State.PENDING, State.CLAIMED])
def test_only_settled_events_are_replayed_and_purged(admin: Admin, state: State) -> None:
    selection = Selection(states=frozenset({state}))
    with pytest.raises(UsageError, match=f"only, got state {state.lower()}"):
        admin.replay(selection)
    with pytest.raises(UsageError, match=f"only, got state {state.lower()}"):
        admin.preview_purge(selection)


def test_purge_with_empty_selection_is_refused(admin: Admin) -> None:
    with pytest.raises(UsageError, match="missing selection for purge"):
        admin.purge(Selection())


def test_unknown_id_prevents_whole_replay(admin: Admin, settled: Settled) -> None:
    known = settled(Dead("no"))
    with pytest.raises(EventNotFound):
        admin.replay(Selection(ids=frozenset({known, EventId(uuid4())})))
    assert admin.status().dead == 1


def test_reap_repeats_until_no_expired_lease_is_left(admin: Admin, store: SqlStore, an_hour_ago: SqlStore) -> None:
    an_hour_ago.append([Event(event_type="t") for _ in range(6)])
    for _ in range(3):
        an_hour_ago.claim("outbox", limit=2, claimant="gone", lease_seconds=60.0)
    assert admin.status().expired_leases == 3
    assert "expired" in [finding.code for finding in admin.status().findings]
    heard: list[int] = []
    assert admin.reap(progress=heard.append) == 6
    assert heard[-1] == 6
    assert (admin.status().expired_leases, admin.status().pending) == (0, 6)
    assert admin.reap() == 0


def test_repeated_initialise_changes_nothing(admin: Admin, settled: Settled) -> None:
    settled()
    assert list(admin.initialise().steps) == []
    assert admin.status().published == 1
