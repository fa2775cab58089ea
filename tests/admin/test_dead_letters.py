"""Dead letters on real stores: order of the list, details, redrive and purge."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any
from uuid import uuid4

import pytest

from penstock.admin.dead_letters import DeadLetterOffice, OfficeResult
from penstock.admin.service import Admin
from penstock.model.errors import EventNotFound, UsageError
from penstock.model.event import Event, EventId
from penstock.model.lifecycle import State
from penstock.model.outcome import Dead, Retry
from penstock.model.selection import Selection
from penstock.store.registry import open_store
from penstock.store.sql.store import SqlStore
from tests.support.processes import wait_until

Settled = Callable[..., EventId]
ALL = Selection(everything=True)


@pytest.fixture
def office(admin: Admin) -> DeadLetterOffice:
    return admin.dead_letters


def make_dead(store: SqlStore, number: int, error: str = "no", queue: str = "outbox", **fields: Any) -> list[EventId]:
    """Create `number` dead letters; `{}` in the error is replaced by the number of each."""
    ids = store.append([Event(event_type="order.placed", queue=queue, **fields) for _ in range(number)])
    claim = store.claim(queue, limit=number, claimant="tester")
    store.settle(claim.lease, {one.seq: Dead(error.format(place)) for place, one in enumerate(claim.events)})
    return ids


def test_dead_letters_are_listed_latest_first(office: DeadLetterOffice, settled: Settled) -> None:
    ids = [str(settled(Dead(f"no {number}\nFile x, line 1"))) for number in range(5)]
    settled()
    first = office.find(limit=3)
    rest = office.find(after=first.after, limit=3)
    letters = json.loads(json.dumps(first.as_json()))["dead_letters"] + rest.dead_letters
    assert [letter["event_id"] for letter in letters] == ids[::-1]
    assert rest.after is None
    assert (
        letters[0].items() >= {"queue": "outbox", "event_type": "order.placed", "attempts": 1, "error": "no 4"}.items()
    )
    assert letters[0].keys() >= {"died_at", "created_at", "replays"}


@pytest.mark.parametrize("after", ["", "12", "a.b", "1.", "99999999999999999999999.1", "1.2.3"])
def test_invalid_page_position_is_refused(office: DeadLetterOffice, after: str) -> None:
    with pytest.raises(UsageError, match="invalid position"):
        office.find(after=after)


def test_find_limit_of_zero_is_refused(office: DeadLetterOffice) -> None:
    with pytest.raises(UsageError, match="limit must be at least 1"):
        office.find(limit=0)


def test_totals_count_by_queue_and_error_kind(office: DeadLetterOffice, store: SqlStore) -> None:
    make_dead(store, 3, "order {} is unknown\nFile x", "orders")
    make_dead(store, 2, "order {} is unknown", "returns")
    make_dead(store, 4, "timeout", "returns")
    assert json.loads(json.dumps(office.totals().as_json())) == {
        "total": 9,
        "queues": [{"queue": "returns", "count": 6}, {"queue": "orders", "count": 3}],
        "errors": [{"error": "order # is unknown", "count": 5}, {"error": "timeout", "count": 4}],
    }
    assert office.totals(Selection(queue="orders", error="UNKNOWN")).total == 3


def test_totals_without_dead_letters_are_zero(office: DeadLetterOffice, settled: Settled) -> None:
    settled()
    assert office.totals().as_json() == {"total": 0, "queues": [], "errors": []}
    assert office.find().as_json() == {"dead_letters": [], "after": None}


def test_dead_letter_is_shown_with_error_and_origin(office: DeadLetterOffice, store: SqlStore) -> None:
    headers = {"penstock-stream-name": "totals", "penstock-stream-id": "1718-0", "tenant": "eu"}
    (event_id,) = store.append([Event(event_type="t", queue="streams/totals", payload=b'{"a": 1}', headers=headers)])
    for outcome in (Retry("refused", 0.0), Dead("KeyError: 'b'\n  File x, line 3")):
        claim = store.claim("streams/totals", limit=1, claimant="tester")
        store.settle(claim.lease, {claim.events[0].seq: outcome})
    letter = json.loads(json.dumps(office.show(event_id)))
    assert letter["last_error"] == "KeyError: 'b'\n  File x, line 3"
    assert (letter["attempts"], letter["own_failures"], letter["replays"]) == (2, 2, 0)
    assert letter["died_at"] == letter["settled_at"]
    assert letter["came_from"] == {"name": "totals", "id": "1718-0"}
    assert [line["what"] for line in letter["timeline"]] == ["emitted", "retried", "died"]
    assert office.find(Selection(queue="streams/totals")).dead_letters[0]["event_id"] == str(event_id)


def test_own_failures_count_since_replay_without_lost_leases(office: DeadLetterOffice, store: SqlStore) -> None:
    (event_id,) = make_dead(store, 1, max_attempts=3)
    office.redrive(ALL)
    claim = store.claim("outbox", limit=1, claimant="fails")
    store.settle(claim.lease, {claim.events[0].seq: Retry("refused", 0.0)})
    for _ in range(2):
        claim = store.claim("outbox", limit=1, claimant="hangs", lease_seconds=0.001)
        assert claim
        assert wait_until(lambda: store.reap() == 1, 60)
    letter = office.show(event_id)
    assert (letter["attempts"], letter["own_failures"], letter["last_error"]) == (3, 1, "lease expired")


def test_dead_copy_of_routed_event_is_shown(office: DeadLetterOffice, store: SqlStore) -> None:
    (event_id,) = store.append([Event(event_type="t")])
    claim = store.claim("outbox", limit=1, claimant="router")
    store.route(claim.lease, {claim.events[0].seq: ["a", "b"]})
    claim = store.claim("b", limit=1, claimant="tester")
    store.settle(claim.lease, {claim.events[0].seq: Dead("no")})
    letter = office.show(event_id)
    assert (letter["queue"], letter["state"], letter["own_failures"]) == ("b", "DEAD", None)
    assert [(copy["queue"], copy["state"]) for copy in letter["copies"]] == [("a", "PENDING")]
    assert office.redrive(Selection(ids=frozenset({event_id}))) == OfficeResult(done="redriven", count=1, left_alone=[])


def test_show_refuses_events_that_are_not_dead(office: DeadLetterOffice, settled: Settled) -> None:
    published = settled()
    with pytest.raises(UsageError, match=f"{published} is published, not dead; show it with: penstock show"):
        office.show(published)
    with pytest.raises(EventNotFound):
        office.show(EventId(uuid4()))


@pytest.mark.parametrize("verb", ["redrive", "purge"])
def test_dry_run_counts_without_change(office: DeadLetterOffice, store: SqlStore, verb: str) -> None:
    dead = make_dead(store, 3)
    (pending,) = store.append([Event(event_type="t")])
    preview = getattr(office, verb)(Selection(ids=frozenset([*dead, pending])), dry_run=True)
    document = json.loads(json.dumps(preview.as_json()))
    assert (document["dry_run"], document["total"], len(document["examples"])) == (True, 3, 3)
    assert document["left_alone"] == [{"event_id": str(pending), "state": "PENDING"}]
    assert office.totals().total == 3


def test_redrive_replays_event_with_same_id(office: DeadLetterOffice, admin: Admin, settled: Settled) -> None:
    dead, published = settled(Dead("no")), settled()
    assert office.redrive(ALL, by="ann").as_json() == {"redriven": 1, "left_alone": []}
    event = admin.show(dead)
    assert (event["state"], event["attempts"], event["replays"], event["last_error"]) == ("PENDING", 0, 1, None)
    assert [(line["what"], line["by"]) for line in event["timeline"][1:3]] == [("died", "tester"), ("replayed", "ann")]
    assert admin.show(published)["state"] == "PUBLISHED"


@pytest.mark.parametrize("verb", ["redrive", "purge"])
def test_events_that_are_not_dead_are_reported_and_left(
    office: DeadLetterOffice, admin: Admin, settled: Settled, verb: str
) -> None:
    dead, published, unknown = settled(Dead("no")), settled(), EventId(uuid4())
    handled = getattr(office, verb)(Selection(ids=frozenset({dead, published, unknown})))
    left = {one.event_id: one.state for one in handled.left_alone}
    assert (handled.count, left) == (1, {str(published): "PUBLISHED", str(unknown): None})
    again = getattr(office, verb)(Selection(ids=frozenset({dead})))
    assert again.count == 0
    assert [one.state for one in again.left_alone] == ["PENDING" if verb == "redrive" else None]
    assert admin.show(published)["state"] == "PUBLISHED"


def test_id_excluded_by_filter_is_left_alone(office: DeadLetterOffice, settled: Settled) -> None:
    dead = settled(Dead("no"), queue="mail")
    handled = office.redrive(Selection(ids=frozenset({dead}), queue="outbox"))
    assert (handled.count, [one.state for one in handled.left_alone]) == (0, ["DEAD"])


@pytest.mark.parametrize("verb", ["redrive", "purge"])
def test_redrive_and_purge_refuse_invalid_selection(office: DeadLetterOffice, settled: Settled, verb: str) -> None:
    settled(Dead("no"))
    with pytest.raises(UsageError, match=f"missing selection for {verb}"):
        getattr(office, verb)(Selection())
    with pytest.raises(UsageError, match=f"{verb} applies to dead events only"):
        getattr(office, verb)(Selection(states=frozenset({State.PUBLISHED, State.DEAD})))
    assert office.totals().total == 1


def test_10_000_dead_letters_are_redriven_in_batches(
    office: DeadLetterOffice, store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.store.sql.store.REPLAY_BATCH", 1_000)
    make_dead(store, 10_000, "order {} is unknown")
    assert [one.count for one in office.totals().errors] == [10_000]
    heard: list[int] = []
    assert office.redrive(ALL, progress=heard.append).count == 10_000
    assert heard == [*range(1_000, 10_001, 1_000), 10_000]
    assert store.stats().total("pending") == 10_000


def test_interrupted_redrive_commits_whole_batches(
    office: DeadLetterOffice, store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.store.sql.store.REPLAY_BATCH", 10)
    make_dead(store, 35)

    def leave(done: int) -> None:
        if done == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        office.redrive(ALL, progress=leave)
    assert (store.stats().total("pending"), store.stats().total("dead")) == (20, 15)
    assert office.redrive(ALL).count == 15
    assert store.stats().total("pending") == 35


@pytest.mark.parametrize("others", [("purge", "purge"), ("purge", "redrive"), ("redrive", "redrive")])
def test_concurrent_operations_handle_each_dead_letter_once(url: str, store: SqlStore, others: tuple[str, str]) -> None:
    make_dead(store, 2_000)
    together = Barrier(len(others))

    def work(verb: str) -> int:
        own = open_store(url)
        together.wait()
        try:
            count: int = getattr(Admin(own).dead_letters, verb)(ALL).count
            return count
        finally:
            own.close()

    with ThreadPoolExecutor(len(others)) as threads:
        counts = list(threads.map(work, others))
    stats = store.stats()
    left = stats.total("dead")  # each operation may have skipped events that the other had locked
    redriven = sum(count for verb, count in zip(others, counts, strict=True) if verb == "redrive")
    assert stats.total("pending") == redriven
    assert sum(counts) + left == 2_000
    assert Admin(store).dead_letters.purge(ALL).count == left


def test_list_contains_no_payloads(office: DeadLetterOffice, store: SqlStore) -> None:
    make_dead(store, 1, "no \x1b[31m" + " x" * 100_000, payload=b"y" * 1_000_000)
    assert len(json.dumps(office.find().as_json())) < 2_000
    assert office.totals().errors[0].error.startswith("no \x1b[#m x x")


def test_guide_program_runs(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "guides" / "dead-letters.md"
    (program,) = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "'redriven': 0" in done.stdout
