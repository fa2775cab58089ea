"""The crash simulator: parsing of crash points, and kills at the given point."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.model.errors import UsageError
from penstock.outbox import connect
from penstock.publish.api import Message
from penstock.testing.events import delivery
from tests.support.crashes import POINTS, Crash, Plan, arm, family
from tests.support.processes import wait_until

PROGRAM = """
import os, sys
from penstock.model.outcome import PUBLISHED
from penstock.outbox import connect
from tests.support import crashes

assert crashes.arm()
store = connect(sys.argv[1]).store
while claim := store.claim("outbox", limit=10, claimant="doomed", lease_seconds=0.1):
    print("claimed", flush=True)
    store.settle(claim.lease, {event.seq: PUBLISHED for event in claim.events})
    print("settled", flush=True)
"""


@pytest.mark.parametrize(
    ("text", "crash"),
    [
        ("after-claim", Crash("after-claim")),
        ("after-claim:3", Crash("after-claim", passage=3)),
        ("in-settle:2:family", Crash("in-settle", passage=2, victim="family")),
        ("after-publish:2.5%", Crash("after-publish", chance=0.025)),
        ("after-publish:1%:driver", Crash("after-publish", chance=0.01, victim="driver")),
        (" poison:bad:apple ", Crash("poison", payload=b"bad:apple")),
    ],
)
def test_crash_text_is_parsed(text: str, crash: Crash) -> None:
    assert Crash.parse(text) == crash


@pytest.mark.parametrize("text", ["", "nowhere", "after-claim:often", "after-claim:1:bystander", "poison", "poison:"])
def test_invalid_crash_text_is_refused_with_example(text: str) -> None:
    with pytest.raises(UsageError, match="is not a crash; one looks like after-publish:3"):
        Crash.parse(text)


def test_crash_is_due_only_at_given_passage() -> None:
    plan = Plan("after-claim:3, in-settle:1")
    assert [plan.due("after-claim") is not None for _ in range(5)] == [False, False, True, False, False]
    assert plan.due("in-settle") == Crash("in-settle")
    assert plan.due("after-publish") is None


def test_chance_crashes_occur_at_given_rate() -> None:
    plan = Plan("after-claim:20%")
    struck = sum(plan.due("after-claim") is not None for _ in range(2_000))
    assert 250 < struck < 550


def test_plan_file_is_reread_and_fires_once(tmp_path: Path) -> None:
    file = tmp_path / "plan"
    one, other = Plan(f"@{file}"), Plan(f"@{file}")
    assert one.due("after-claim") is None
    file.write_text("after-claim:2\n")
    assert [plan.due("after-claim") for plan in (one, other)] == [None, None]
    assert other.due("after-claim") == Crash("after-claim", passage=2)
    assert one.due("after-claim") is None
    assert not file.exists()
    assert file.with_name("plan.fired").exists()


def test_poison_message_is_recognised_by_payload() -> None:
    plan = Plan("poison:arsenic")
    messages = [Message("t", delivery(payload=payload)) for payload in (b"bread", b'{"with": "arsenic"}')]
    assert not plan.poisoned(messages[:1])
    assert plan.poisoned(messages)


def test_crashes_are_not_armed_without_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_CRASH", raising=False)
    assert not arm()


@pytest.mark.crash
@pytest.mark.parametrize(
    ("crash", "printed", "claimed", "published"),
    [
        ("in-claim:2", [], 0, 0),
        ("after-claim", [], 10, 0),
        ("after-claim:2", ["claimed", "settled"], 10, 10),
        ("in-settle:2", ["claimed"], 10, 0),
        ("in-settle:3", ["claimed"], 10, 0),
        ("after-settle", ["claimed"], 0, 10),
    ],
)
def test_process_is_killed_at_crash_point(
    tmp_path: Path, crash: str, printed: list[str], claimed: int, published: int
) -> None:
    url = f"sqlite:///{tmp_path}/penstock.db"
    with connect(url) as outbox:
        outbox.store.initialise()
        outbox.emit_many(outbox.event("doomed", {"number": number}) for number in range(30))
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, url],
            env={**os.environ, "PENSTOCK_CRASH": crash},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert done.stdout.split() == printed
        stats = outbox.store.stats()
        assert (stats.total("claimed"), stats.total("published")) == (claimed, published)


def test_every_crash_point_has_description() -> None:
    assert all(len(where.split()) > 3 for where in POINTS.values())


def test_family_is_process_and_descendants() -> None:
    parent = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    process = subprocess.Popen([sys.executable, "-c", parent], stdin=subprocess.PIPE, start_new_session=True)
    grown: Callable[[], bool] = lambda: len(family(process.pid)) == 2  # noqa: E731
    try:
        assert wait_until(grown, 30)
        assert family(process.pid)[0] == process.pid
    finally:
        process.communicate(b"\n")
