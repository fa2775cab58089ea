"""`penstock worker` as real processes: handling, stopping, restarting dead processes, reloading, health reports."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from worker_commands import PATIENCE, Ground

from penstock.cli import main
from penstock.outbox import Outbox, connect
from penstock.telemetry import log
from tests.support.processes import wait_until


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Outbox]:
    with connect(f"sqlite:///{tmp_path / 'events.db'}") as outbox:
        outbox.store.initialise()
        yield outbox


@pytest.fixture
def ground(tmp_path: Path, db: Outbox) -> Iterator[Ground]:
    made = Ground(tmp_path, f"sqlite:///{tmp_path / 'events.db'}")
    yield made
    made.close()


def emit(db: Outbox, *payloads: str) -> None:
    db.emit_many([db.event("worked", payload, queue="work") for payload in payloads])


def await_settled(db: Outbox, published: int) -> None:
    assert wait_until(lambda: db.store.stats().total("published") >= published, PATIENCE), db.store.stats()


def test_worker_handles_events_and_stops_gracefully(ground: Ground, db: Outbox) -> None:
    emit(db, "gate", *"abc")
    command = ground.run("workers:worker", "--queue", "work", "--health", "127.0.0.1:0")
    command.await_running()
    assert wait_until(lambda: command.health()[1]["queues"]["work"]["running"] == 1, PATIENCE)
    code, answer = command.health()
    assert (code, answer["status"], answer["reasons"]) == (200, "ok", [])
    assert answer["queues"]["work"] == {
        "running": 1,
        "queued": 3,
        "handled": 0,
        "failed": 0,
        "dead": 0,
        "lost": 0,
        "fetched_seconds_ago": answer["queues"]["work"]["fetched_seconds_ago"],
    }
    assert answer["loops"]["fetch of work"] == {"alive": True, "trouble": None}
    command.send(signal.SIGTERM)
    command.await_log("stopping")
    assert wait_until(lambda: command.health()[0] == 503, PATIENCE)
    ground.open_gate()
    assert command.wait() == 0
    assert ground.handled() == ["v1 gate"]
    stats = db.store.stats()
    assert [stats.total(state) for state in ("published", "pending", "claimed")] == [1, 3, 0]


def test_store_option_overrides_store_of_worker(ground: Ground, db: Outbox, tmp_path: Path) -> None:
    with connect(f"sqlite:///{tmp_path / 'other.db'}") as other:
        other.store.initialise()
        emit(other, "other")
        command = ground.run("workers:worker", "--store", f"sqlite:///{tmp_path / 'other.db'}")
        await_settled(other, 1)
    command.send(signal.SIGINT)
    assert command.wait() == 0


IMPORTS = """
import sys

@worker.handler("imports")
def write_imports(event):
    open("imports", "w").write(" ".join(sys.modules))
"""


def test_worker_without_health_imports_no_http_server(ground: Ground, db: Outbox) -> None:
    ground.write(version=1, more=IMPORTS)
    command = ground.run("workers:worker", "--processes", "2")
    command.await_running(2)
    db.emit("x", queue="imports")
    await_settled(db, 1)
    imported = (ground.folder / "imports").read_text().split()
    assert {"penstock.worker", "uvicorn", "starlette", "watchfiles"} & set(imported) == {"penstock.worker"}
    command.send(signal.SIGTERM)
    assert command.wait() == 0


@pytest.mark.crash
def test_killed_process_is_replaced_and_its_events_are_handled(ground: Ground, db: Outbox) -> None:
    command = ground.run("workers:worker", "--processes", "2", "--health", "127.0.0.1:0")
    command.await_running(2)
    emit(db, "gate")
    victim = command.await_call()
    os.kill(victim, signal.SIGKILL)
    command.await_log(rf"process_ended process=[12] pid={victim} error=Killed retry_in=0.1")
    ground.open_gate()
    emit(db, *map(str, range(20)))
    command.await_running(3)
    await_settled(db, 21)
    assert sorted(set(ground.handled())) == sorted({"v1 gate", *(f"v1 {number}" for number in range(20))})
    assert wait_until(lambda: [one["status"] for one in command.reports().values()] == ["ok", "ok"], PATIENCE)
    command.send(signal.SIGTERM)
    assert command.wait() == 0
    assert command.group() == set()


def test_pauses_between_restarts_grow(ground: Ground, tmp_path: Path) -> None:
    later = f"sqlite:///{tmp_path / 'later.db'}"
    command = ground.run("workers:worker", "--processes", "2", "--store", later)
    pauses = command.await_log(r'process_ended process=1 .* error="exit code 1" retry_in=(\S+)', times=2)
    assert pauses[:2] == ["0.1", "0.2"]
    assert "process_ended process=2" not in command.log
    command.await_log("error: .*run: penstock init")
    with connect(later) as outbox:
        outbox.store.initialise()
        command.await_running(2)
    command.send(signal.SIGTERM)
    assert command.wait() == 0


@pytest.mark.crash
def test_processes_do_not_outlive_their_supervisor(ground: Ground, db: Outbox) -> None:
    emit(db, "gate", *"abc")
    command = ground.run("workers:worker", "--processes", "2", "--health", "127.0.0.1:0")
    command.await_running(2)
    command.await_call()
    assert len(command.children()) == 2
    command.send(signal.SIGKILL)
    command.wait()
    ground.open_gate()  # the call in progress ends normally
    assert wait_until(lambda: command.group() == set(), PATIENCE)
    stats = db.store.stats()
    assert (stats.total("claimed"), stats.open_leases) == (0, 0)
    assert "v1 gate" in ground.handled()


@pytest.mark.crash
@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, 0)])
def test_process_that_hangs_in_an_import_ends_with_its_supervisor(
    ground: Ground, number: signal.Signals, code: int
) -> None:
    ground.write(version=1, more="import time\nprint('importing', flush=True)\ntime.sleep(3_600)\n")
    command = ground.run("workers:worker", "--processes", "2")
    command.await_log("importing")
    assert len(command.children()) == 1, "the others wait for the first"
    command.send(number)
    assert command.wait() == code
    assert wait_until(lambda: command.group() == set(), PATIENCE)


def test_signal_that_reaches_every_process_is_graceful(ground: Ground, db: Outbox) -> None:
    emit(db, "gate")
    command = ground.run("workers:worker", "--processes", "2", "--health", "127.0.0.1:0")
    command.await_running(2)
    busy = command.await_call()
    command.send_to_all(signal.SIGTERM)
    command.await_log("stopping hint=")
    assert wait_until(lambda: command.children() == {busy}, PATIENCE)
    os.kill(busy, signal.SIGTERM)  # repeated signals count only at the supervisor
    ground.open_gate()
    assert command.wait() == 0
    assert ground.handled() == ["v1 gate"]
    assert db.store.stats().total("published") == 1


@pytest.mark.crash
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_second_signal_ends_the_process_at_once(ground: Ground, db: Outbox, number: signal.Signals) -> None:
    emit(db, "gate")
    command = ground.run("workers:worker", "--health", "127.0.0.1:0")
    command.await_call()
    command.send(number)
    command.await_log("stopping hint=")
    command.send(number)
    assert command.wait() == 128 + number
    command.await_log("stopping at once; events in progress are retried after their leases expire")


@pytest.mark.crash
def test_second_signal_ends_every_process_at_once(ground: Ground, db: Outbox) -> None:
    emit(db, "gate")
    command = ground.run("workers:worker", "--processes", "2", "--health", "127.0.0.1:0")
    command.await_running(2)
    busy = command.await_call()
    (idle,) = command.children() - {busy}
    os.kill(idle, signal.SIGSTOP)
    command.send(signal.SIGTERM)
    command.await_log("stopping hint=")
    command.send(signal.SIGTERM)
    assert command.wait() == 128 + signal.SIGTERM
    assert wait_until(lambda: command.group() == set(), PATIENCE)
    assert ground.handled() == []


@pytest.mark.crash
def test_process_killed_while_stopping_is_a_failure(ground: Ground, db: Outbox) -> None:
    emit(db, "gate")
    command = ground.run("workers:worker", "--processes", "2", "--health", "127.0.0.1:0")
    command.await_running(2)
    busy = command.await_call()
    command.send(signal.SIGTERM)
    command.await_log("stopping hint=")
    os.kill(busy, signal.SIGKILL)
    assert command.wait() == 1
    command.await_log("process_failed process=[12] error=Killed")


THREAD_WITHOUT_END = """
import threading
from penstock.worker.processes import process

process.LAST_SECONDS = 0.0
threading.Thread(target=threading.Event().wait).start()
"""


@pytest.mark.crash
def test_process_that_can_not_stop_is_ended(ground: Ground, db: Outbox) -> None:
    ground.write(version=1, more=THREAD_WITHOUT_END)
    command = ground.run("workers:worker", "--processes", "2", "--graceful-timeout", "0.5")
    command.await_running(2)
    command.send(signal.SIGTERM)
    assert command.wait() == 1
    command.await_log("process_failed", times=2)
    assert command.group() == set()


def test_changed_code_is_run(ground: Ground, db: Outbox) -> None:
    command = ground.run("workers:worker", "--reload", "--health", "127.0.0.1:0")
    command.await_running()
    emit(db, "one")
    await_settled(db, 1)
    ground.write(version=2, more="def oops(:\n")
    command.await_log("waiting_for_code_change")
    (error,) = command.await_log(r"error: cannot import 'workers': (.*)")
    assert "workers.py, line 13: SyntaxError: invalid syntax" in error
    assert command.reports() == {}
    ground.write(version=3)
    command.await_running(2)
    emit(db, "two")
    await_settled(db, 2)
    assert ground.handled() == ["v1 one", "v3 two"]
    command.send(signal.SIGTERM)
    assert command.wait() == 0


def test_changes_of_other_files_do_not_delay_a_stop(ground: Ground, db: Outbox) -> None:
    """Log and database files in the working folder may change constantly."""
    command = ground.run("workers:worker", "--reload")
    command.await_running()
    over = threading.Event()

    def write() -> None:
        while not over.wait(0.01):
            (ground.folder / "noise.log").write_text("noise")

    writing = threading.Thread(target=write)
    writing.start()
    try:
        command.send(signal.SIGTERM)
        assert command.wait() == 0
    finally:
        over.set()
        writing.join()


def test_usage_error_ends_all_processes_with_one_line(ground: Ground) -> None:
    command = ground.run("workers:worker", "--processes", "3", "--queue", "elsewhere")
    assert command.wait() == 2
    assert command.log == "error: worker has no handler for queue 'elsewhere'\n"


@pytest.mark.crash
def test_later_import_error_does_not_end_running_processes(ground: Ground, db: Outbox) -> None:
    """A process that dies during a deployment is restarted until the new code can be imported."""
    command = ground.run("workers:worker", "--processes", "2")
    command.await_running(2)
    ground.write(version=2, more="def oops(:\n")
    victim, other = command.children()
    os.kill(victim, signal.SIGKILL)
    command.await_log(r'process_ended .* error="exit code 2" retry_in=0.2')
    assert other in command.children()
    ground.write(version=3)
    command.await_running(3)
    command.send(signal.SIGTERM)
    assert command.wait() == 0


MODULES = {
    "empty_at_hand": "",
    "failing_at_hand": "import json\n\njson.loads('{')\n",
    "leaving_at_hand": "import sys\nsys.exit(3)\n",
    "lacking_at_hand": "import os\nimport no_such_library\n",
    "rivals_at_hand": (
        "from penstock import Worker\nworker = other = Worker()\n"
        "worker.handler('a')(print)\nworker.handler('a')(print)\n"
    ),
    "good_at_hand": "from penstock import Worker\nworker = Worker()\nsettings = {}\n",
}


@pytest.fixture
def modules_at_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run the command in this process, in the folder of the modules; restore the process afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(log, "to_stderr", lambda: None)
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)
    yield
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["good_at_hand"], "invalid worker 'good_at_hand'; expected a name such as shop.workers:worker"),
        (["good_at_hand:"], "invalid worker 'good_at_hand:'"),
        (["no_module:worker"], "module 'no_module' not found in {folder} or on the Python path"),
        (["good_at_hand.deeper:worker"], "module 'good_at_hand.deeper' not found in {folder}"),
        (["empty_at_hand:worker"], "module 'empty_at_hand' has no 'worker'\n"),
        (["good_at_hand:wroker"], "module 'good_at_hand' has no 'wroker'; existing workers: good_at_hand:worker\n"),
        (
            ["good_at_hand:settings"],
            "'good_at_hand:settings' must be a worker, got dict; existing workers: good_at_hand:worker",
        ),
        (["failing_at_hand:worker"], "{folder}/failing_at_hand.py, line 3: JSONDecodeError: Expecting"),
        (["leaving_at_hand:worker"], "{folder}/leaving_at_hand.py, line 2: SystemExit: 3"),
        (
            ["lacking_at_hand:worker"],
            "lacking_at_hand.py, line 2: ModuleNotFoundError: No module named 'no_such_library'",
        ),
        (
            ["rivals_at_hand:worker"],
            "{folder}/rivals_at_hand.py, line 4: queue 'a' already has a handler for these events",
        ),
        (["good_at_hand:worker"], "worker has no handlers"),
        (["good_at_hand:worker", "--queue", "x"], "worker has no handler for queue 'x'"),
        (["good_at_hand:worker", "--reload", "--processes", "2"], "--reload supports only one process"),
        (["no_module:worker", "--reload"], "module 'no_module' not found in {folder}"),
        (["good_at_hand:worker", "--processes", "0"], "--processes"),
        (["good_at_hand:worker", "--graceful-timeout", "-1"], "graceful_timeout must be finite and at least 0"),
        (["good_at_hand:worker", "--graceful-timeout", "nan"], "graceful_timeout must be finite and at least 0"),
        (
            ["good_at_hand:worker", "--health", "8080"],
            "invalid address '8080' for --health; use HOST:PORT, such as 127.0.0.1:8080",
        ),
        (["good_at_hand:worker", "--health", "::1:99999"], "invalid address '::1:99999' for --health"),
        (["good_at_hand:worker", "--processes", "2", "--health", "::1:65535"], "2 processes need ports up to 65536"),
    ],
)
@pytest.mark.usefixtures("modules_at_hand")
def test_invalid_arguments_are_one_line_errors(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["worker", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert message.format(folder=tmp_path) in error


@pytest.mark.usefixtures("modules_at_hand")
def test_stack_trace_is_shown_in_debug_mode(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PENSTOCK_DEBUG", "1")
    assert main(["worker", "failing_at_hand:worker"]) == 2
    assert "json.loads('{')\n" in capsys.readouterr().err
