"""Schedule and audit of `make chaos`. The audit must detect every kind of mistake."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.audit import STATES, Audit, audit
from chaos.campaign import Outcome, Plan
from chaos.orders import Orders, Sums
from chaos.program import COUNTED, STREAM
from chaos.report import Report
from chaos.schedule import Kill, KillAtRandom, Outage, Schedule, SecondDriver
from chaos.sources import ORDERS
from chaos.steps import DRIVER, STEPS
from chaos.trial import Tally, Verdict
from penstock import Outbox, connect
from penstock.model.outcome import Dead
from penstock.streams.state.api import Saved, StateStore
from penstock.streams.state.registry import open_state
from tests.support import crashes

PAGE = Path(__file__).parents[2] / "docs" / "internals" / "reliability.md"


def test_report_renders_as_table_and_json() -> None:
    tally = Tally(kills=3, steps=Counter({7: 2, 11: 1}), starts=2, gave_up=Counter({"it was tired": 1}))
    wrong = Audit(lost=[5], doubled=[6], wrong_sums={"k": (Sums(1, 2), None)}, missing_dead=[7])
    plan = Plan(seed=1, kills=3, events=100, sources=["queue"], states=["sqlite"])
    outcomes = [
        Outcome("queue", "sqlite", Verdict(Audit(), tally, 100, 12.5)),
        Outcome("queue", "rocksdb", Verdict(wrong, tally, 100, 12.5), folder="somewhere"),
        Outcome("kafka", "sqlite", not_run="no Kafka here"),
        Outcome("valkey", "sqlite", failure="it hung"),
    ]
    report = Report(plan, outcomes, 25.0)
    document = json.loads(report.to_json())
    passed, failed, *_ = document["trials"]
    assert (passed["passed"], failed["passed"], document["passed"]) == (True, False, False)
    assert passed["verdict"]["tally"]["steps"] == {"7": 2, "11": 1}
    assert passed["verdict"]["tally"]["gave_up"] == {"it was tired": 1}
    assert failed["verdict"]["audit"]["wrong_sums"] == {"k": [{"count": 1, "sum": 2}, None]}
    text = report.to_text()
    assert "| queue | sqlite | 100 | 3 | 2 | 0 | 0 | 0 | correct | 12 |" in text
    for expected in ("lost: 1 orders", "wrong sum of 'k'", "no Kafka here", "it hung", "it was tired", "somewhere"):
        assert expected in text


def test_same_seed_gives_same_faults() -> None:
    one, same, other = Schedule(50, 7), Schedule(50, 7), Schedule(50, 8)
    assert one.faults == same.faults != other.faults
    assert [one.next_start() for _ in range(9)] == [same.next_start() for _ in range(9)]
    assert Orders(100, 7).all == Orders(100, 7).all != Orders(100, 8).all


@pytest.mark.parametrize("kills", [0, 1, 6, 200])
def test_schedule_has_requested_number_of_kills(kills: int) -> None:
    faults = Schedule(kills, 1).faults
    assert sum(isinstance(fault, Kill | KillAtRandom) for fault in faults) == kills
    assert not kills or {SecondDriver, Outage} <= {type(fault) for fault in faults}


def test_200_kills_cover_every_step_and_victim() -> None:
    killed = [fault for fault in Schedule(200, 1).faults if isinstance(fault, Kill)]
    assert {fault.step for fault in killed} == {*STEPS}
    assert {fault.step for fault in killed if fault.ends_driver} == {*STEPS}
    assert Counter(fault.victim for fault in killed).keys() == {"self", "driver", "family"}
    assert all(crashes.Crash.parse(fault.crash).victim == fault.victim for fault in killed)
    assert all(fault.ends_driver for fault in killed if fault.step.where == DRIVER)


def test_documented_steps_match_code() -> None:
    assert [step.number for step in STEPS] == [*range(1, len(STEPS) + 1)]
    rows = re.findall(r"^\| (\d+) \| `([\w-]+)` \| (\w+) \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    assert [(int(number), *rest) for number, *rest in rows] == [tuple(step) for step in STEPS]


@pytest.fixture
def outbox(postgres_url: str) -> Iterator[Outbox]:
    with connect(postgres_url) as made:
        made.store.initialise()
        yield made


@pytest.fixture(params=STATES)
def state(request: pytest.FixtureRequest, tmp_path: Path, postgres_url: str) -> str:
    return postgres_url if request.param == "postgresql" else f"{request.param}:///{tmp_path / 'state'}"


def leave_behind(orders: Orders, outbox: Outbox, state: str) -> None:
    """Create the state and events that a correct stream would leave."""
    emit(outbox, *orders.counted)
    die(outbox, *orders.dead)
    save(open_state(state), orders.sums())


def emit(outbox: Outbox, *numbers: int) -> None:
    outbox.emit_many(outbox.event("order.counted", {"number": number}, queue=COUNTED) for number in numbers)


def die(outbox: Outbox, *numbers: int) -> None:
    outbox.emit_many(outbox.event("order", {"number": number}, queue=ORDERS) for number in numbers)
    claim = outbox.store.claim(ORDERS, limit=1_000, claimant="test")
    outbox.store.settle(claim.lease, {event.seq: Dead("never") for event in claim.events})


def save(store: StateStore, sums: dict[str, Sums]) -> None:
    started = store.start(STREAM, 1)
    part = store.open_part(started, 0)
    with part.transaction() as transaction:
        data = {key: json.dumps({"count": one.count, "sum": one.sum}).encode() for key, one in sums.items()}
        transaction.save({key: Saved(found) for key, found in data.items()} | {"\x01failed/1": Saved(b"1")})
    part.close()


def test_audit_passes_correct_state(outbox: Outbox, postgres_url: str, state: str) -> None:
    orders = Orders(200, 1)
    leave_behind(orders, outbox, state)
    assert audit(orders, postgres_url, state) == Audit()


def test_audit_detects_every_mistake(outbox: Outbox, postgres_url: str, state: str) -> None:
    orders, more = Orders(200, 1), Orders(210, 1)
    leave_behind(orders, outbox, state)
    emit(outbox, 7, 7, 13)
    die(outbox, 4)
    outbox.emit("order", {"number": 1}, queue=ORDERS)
    found = audit(more, postgres_url, state)
    assert found.lost == [number for number in range(200, 210) if number in more.counted]
    assert found.doubled == [4, 7, 13]
    assert found.wrongly_dead == [4]
    assert found.missing_dead == sorted(more.dead - orders.dead)
    assert found.unfinished == 1
    assert found.wrong_sums
    assert all(held != wanted for held, wanted in found.wrong_sums.values())
    assert not found.passed
    assert len(list(found.lines())) >= 5
