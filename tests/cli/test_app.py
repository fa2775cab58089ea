"""The command as a whole: help, version, lazy imports, choice of the store, and error messages."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JError

from penstock.cli.terminal.options import Call
from penstock.model.event import Event
from penstock.store.sql.store import SqlStore

COMMANDS = ("init", "emit", "relay", "status", "events", "show", "replay", "reap", "purge", "doctor", "demo")
HEAVY = {"pyspark", "pandas"}

Run = Callable[..., Any]
Start = Callable[..., "subprocess.Popen[bytes]"]


def test_help_lists_every_command(penstock: Run) -> None:
    ran = penstock("--help")
    assert ran.code == 0
    assert [name for name in COMMANDS if f" {name} " not in ran.out] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(penstock: Run, name: str) -> None:
    ran = penstock(name, "--help")
    assert ran.code == 0
    assert f"penstock {name}" in ran.out


def test_missing_command_shows_help(penstock: Run) -> None:
    ran = penstock()
    assert ran.code == 2
    assert "Usage: penstock" in ran.out


def test_version_option_prints_version(penstock: Run) -> None:
    ran = penstock("--version")
    assert (ran.code, ran.out) == (0, "penstock 0.1.0\n")


@pytest.mark.parametrize(
    ("arguments", "unwanted"),
    [(["--help"], HEAVY | {"sqlalchemy"}), (["status"], HEAVY), (["emit", "a", "b"], HEAVY), (["events"], HEAVY)],
)
@pytest.mark.usefixtures("store")
def test_commands_import_only_needed_packages(arguments: list[str], unwanted: set[str]) -> None:
    code = f"import sys; from penstock.cli import main; main({arguments}); print(sorted({unwanted} & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "[]"


# Choice of the store


def test_store_option_works_before_and_after_command(penstock: Run, tmp_path: Path) -> None:
    assert penstock("--store", "sqlite:///a.db", "init").code == 0
    assert penstock("init", "--store", "sqlite:///b.db").code == 0
    assert sorted(path.name for path in tmp_path.glob("*.db")) == ["a.db", "b.db"]


def test_store_option_of_command_overrides_global_option(penstock: Run) -> None:
    ran = penstock("--store", "sqlite:///a.db", "init", "--store", "sqlite:///b.db", "--json")
    assert ran.json["store"] == "sqlite:///b.db"


def test_store_comes_from_environment_unless_given(penstock: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_STORE", "sqlite:///c.db")
    assert penstock("init", "--json").json["store"] == "sqlite:///c.db"
    assert penstock("--store", "sqlite:///a.db", "init", "--json").json["store"] == "sqlite:///a.db"


# Usage errors


def failed(ran: Any, code: int) -> str:
    """Return the single line on standard error; check the exit code and an empty standard output."""
    assert (ran.code, ran.out) == (code, "")
    assert ran.err.startswith("error: ")
    assert ran.err.count("\n") == 1
    line: str = ran.err
    return line


@pytest.mark.parametrize("command", ["status", "events", "reap", "emit t"])
def test_missing_sqlite_store_error_names_init_command(penstock: Run, tmp_path: Path, command: str) -> None:
    line = failed(penstock(*command.split(), "--store", "sqlite:///new.db"), 1)
    assert "penstock init --store sqlite:///new.db" in line
    assert not (tmp_path / "new.db").exists()


def test_database_without_tables_error_names_init_command(penstock: Run, tmp_path: Path) -> None:
    (tmp_path / "other.db").touch()
    assert "penstock init" in failed(penstock("status", "--store", "sqlite:///other.db"), 1)


def test_unreachable_store_error_masks_password(penstock: Run) -> None:
    line = failed(penstock("status", "--store", "postgresql://ann:geheim@127.0.0.1:1/shop"), 1)
    assert "cannot reach postgresql://ann:***@127.0.0.1:1/shop" in line
    assert "geheim" not in line


@pytest.mark.parametrize("url", ["postgresql://ann:geheim@host:port/shop", "postgresql://ann:geheim@[::1/shop"])
def test_malformed_store_url_error_hides_password(penstock: Run, url: str) -> None:
    line = failed(penstock("status", "--store", url), 2)
    assert "invalid store URL; expected one such as" in line
    assert "geheim" not in line


def test_unknown_store_scheme_is_usage_error(penstock: Run) -> None:
    assert "unknown store scheme 'oracle'; supported: " in failed(penstock("status", "--store", "oracle://x/y"), 2)
    assert "invalid URL 'penstock.db'" in failed(penstock("status", "--store", "penstock.db"), 2)


def test_missing_driver_error_names_extra(penstock: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    line = failed(penstock("status", "--store", "postgresql://localhost/shop"), 2)
    assert "pip install 'penstock[postgres]'" in line


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("events --limit -1", "--limit"),
        ("events --limit many", "--limit"),
        ("events --frobnicate", "--frobnicate"),
        ("events --state lost", "--state"),
        ("events --since yesterday", "invalid time 'yesterday'"),
        ("show", "ID"),
        ("show 12", "invalid event id '12'"),
        ("stats", "'status'"),
        ("status --every 0", "--every"),
    ],
)
@pytest.mark.usefixtures("store")
def test_invalid_arguments_are_usage_errors(penstock: Run, command: str, message: str) -> None:
    assert message in failed(penstock(*command.split()), 2)


@pytest.mark.usefixtures("store")
def test_unknown_event_id_is_usage_error(penstock: Run) -> None:
    line = failed(penstock("show", "0197a3c2-7b1e-7c3d-9f00-5a2b8c4d6e1f"), 2)
    assert "event 0197a3c2-7b1e-7c3d-9f00-5a2b8c4d6e1f does not exist" in line


def broken(*_: object, **__: object) -> None:
    raise LookupError("the moon\nis gone, says postgresql://ann:geheim@host/db")


@pytest.mark.usefixtures("store")
def test_unexpected_error_is_one_line(penstock: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SqlStore, "reap", broken)
    line = failed(penstock("reap"), 1)
    assert "unexpected LookupError: the moon is gone" in line
    assert "set PENSTOCK_DEBUG=1 for the stack trace" in line
    assert "geheim" not in line


def refused_by_spark(*_: object, **__: object) -> None:
    raise Py4JError(
        "An error occurred while calling o1.load.\n: a.b.C: the context was stopped\n\tat a.b.C.load(C.scala:1)"
    )


@pytest.mark.usefixtures("store")
def test_spark_error_has_no_java_stack_trace(penstock: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SqlStore, "reap", refused_by_spark)
    line = failed(penstock("reap"), 1)
    assert line == "error: Spark failed: a.b.C: the context was stopped; set PENSTOCK_DEBUG=1 for the stack trace\n"


@pytest.mark.usefixtures("store", "debugging")
def test_stack_trace_is_shown_in_debug_mode(penstock: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SqlStore, "reap", broken)
    ran = penstock("reap")
    assert ran.code == 1
    assert "Traceback (most recent call last)" in ran.err


@pytest.mark.usefixtures("store")
def test_broken_connection_is_not_mistaken_for_closed_output(penstock: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(*_: object, **__: object) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(SqlStore, "reap", cut)
    assert "connection lost" in failed(penstock("reap"), 1)


def test_keyboard_interrupt_exits_quietly_with_130(
    penstock: Run, monkeypatch: pytest.MonkeyPatch, store: SqlStore
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Call, "opened", interrupted)
    ran = penstock("reap")
    assert (ran.code, ran.out, ran.err) == (130, "", "")


# In separate processes


@pytest.mark.usefixtures("store")
def test_ctrl_c_ends_watched_status_quietly_with_130(process: Start) -> None:
    watching = process("status", "--watch", "--json", "--every", "0.1")
    assert watching.stdout is not None
    assert watching.stdout.readline().startswith(b'{"store"')
    watching.send_signal(signal.SIGINT)
    _, err = watching.communicate(timeout=60)
    assert (watching.returncode, err) == (130, b"")


@pytest.mark.parametrize("command", ["events --json", "events", "status", "status --json", "emit t"])
def test_closed_output_pipe_ends_command_quietly(process: Start, store: SqlStore, command: str) -> None:
    store.append([Event(event_type="t")])
    listing = process(*command.split())
    assert listing.stdout is not None
    listing.stdout.close()
    assert listing.stderr is not None
    assert listing.stderr.read() == b""
    assert listing.wait(timeout=60) == 141
