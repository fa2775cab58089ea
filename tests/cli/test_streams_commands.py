"""`penstock streams` without Spark: errors reported before its start, and commands that show state."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock import Streams
from penstock.cli.commands import streams as command
from penstock.pipeline.streams import driver as streaming
from penstock.pipeline.streams.run import Counts
from penstock.streams.app import part_of
from penstock.streams.context import Context
from penstock.streams.event import StreamEvent
from penstock.streams.state.api import Saved, Superseded
from penstock.streams.state.registry import open_state
from penstock.testing.streams import StreamHarness

Run = Callable[..., Any]
FAILURES = "\x01failed/7/0"  # a key chosen by the application

SHOP = """
from penstock import Streams

app = Streams(state="sqlite:///own-state")
empty = Streams()


@app.stream("orders", key=lambda event: event.json()["customer"])
def total(event, ctx):
    ctx.state["sum"] = ctx.state.get("sum", 0) + event.json()["amount"]


@app.stream("refunds")
def refunds(event, ctx): ...
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Write a module with streams into the working folder."""
    (tmp_path / "shop_at_hand.py").write_text(SHOP)
    (tmp_path / "broken_at_hand.py").write_text("app = Streamz()\n")
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    sys.modules.pop("shop_at_hand", None)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Collect the arguments of `run_streams` instead of starting Spark."""
    kept: list[dict[str, Any]] = []

    def run_streams(app: Streams, **given: Any) -> dict[str, Counts]:
        kept.append({"store": app.store, "state": app.state, **given})
        if given.get("names") == ["refunds"]:
            raise Superseded("another driver has started stream 'refunds' since; this one has stopped")
        return {"total": Counts(batches=3, applied=1_000, retried=2), "refunds": Counts()}

    monkeypatch.setattr(streaming, "run_streams", run_streams)
    return kept


@pytest.mark.usefixtures("store", "shop")
def test_command_line_options_reach_run_streams(penstock: Run, ran: list[dict[str, Any]]) -> None:
    assert penstock("streams", "run", "shop_at_hand:app").code == 0
    usual = {"names": None, "once": False, "master": None, "checkpoint": None}
    assert ran.pop() == {"store": "sqlite:///penstock.db", "state": "sqlite:///own-state", **usual}
    options = "--name total --name refunds --once --master local[3] --checkpoint there --state sqlite:///else"
    assert (
        penstock("--store", "sqlite:///penstock.db", "streams", "run", "shop_at_hand:app", *options.split()).code == 0
    )
    arguments = ran.pop()
    del arguments["progress"]
    given = {"names": ["total", "refunds"], "once": True, "master": "local[3]", "checkpoint": "there"}
    assert arguments == {"store": "sqlite:///penstock.db", "state": "sqlite:///else", **given}


@pytest.mark.usefixtures("store", "shop", "ran")
def test_run_prints_summary(penstock: Run) -> None:
    done = penstock("streams", "run", "shop_at_hand:app")
    assert done.out == "total: 1,000 applied, 2 retried in 0.0 s\nrefunds: 0 applied in 0.0 s\n"
    summary = penstock("streams", "run", "shop_at_hand:app", "--once", "--json").json
    assert summary["streams"]["total"] == {"batches": 3, "applied": 1_000, "retried": 2, "dead": 0, "fired": 0}
    assert summary["seconds"] >= 0
    assert penstock("streams", "run", "shop_at_hand:app", "--quiet").out == ""


@pytest.mark.usefixtures("store", "shop", "ran")
def test_superseded_driver_has_message_and_exit_code(penstock: Run) -> None:
    done = penstock("streams", "run", "shop_at_hand:app", "--name", "refunds")
    assert (done.code, done.out) == (command.SUPERSEDED, "")
    assert done.err == "another driver has started stream 'refunds' since; this one has stopped\n"


@pytest.mark.usefixtures("store", "shop")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("shop_at_hand", "invalid stream application 'shop_at_hand'; expected a name such as shop.streams:app"),
        ("no_such_module:app", "module 'no_such_module' not found in "),
        ("broken_at_hand:app", "cannot import 'broken_at_hand': "),
        ("shop_at_hand:ap", "has no 'ap'; existing stream applications: shop_at_hand:app, shop_at_hand:empty"),
        ("shop_at_hand:total", "'shop_at_hand:total' must be a stream application, got function; existing "),
        ("shop_at_hand:empty", 'application has no streams; define one with @app.stream("queue")'),
        ("shop_at_hand:app --name totl", "stream 'totl' is not defined; defined streams: refunds, total"),
        ("shop_at_hand:app --state pigeon:///x", "unknown state store scheme 'pigeon'; supported: "),
        ("shop_at_hand:app --state sqlite://", "invalid state URL sqlite://; expected a folder"),
        ("shop_at_hand:app --store pigeon:///x", "unknown store scheme 'pigeon'"),
        ("shop_at_hand:app --master spark://h:7077", "sqlite:///own-state is on the disk of one machine; on a cluster"),
    ],
)
def test_invalid_arguments_are_usage_errors_before_start(
    penstock: Run, ran: list[dict[str, Any]], arguments: str, message: str
) -> None:
    done = penstock("streams", "run", *arguments.split())
    assert (done.code, done.out) == (2, "")
    assert message in done.err
    assert done.err.count("\n") == 1
    assert ran == []


@pytest.mark.usefixtures("shop")
def test_unusable_stores_are_reported_before_spark_starts(penstock: Run, ran: list[dict[str, Any]]) -> None:
    done = penstock("streams", "run", "shop_at_hand:app")
    assert (done.code, done.err.count("\n")) == (1, 1)
    assert "penstock init" in done.err
    done = penstock("streams", "run", "shop_at_hand:app", "--state", "postgresql://ann:geheim@127.0.0.1:1/shop")
    assert (done.code, done.err.count("\n"), "geheim" in done.err) == (1, 1, False)
    assert ran == []


@pytest.mark.usefixtures("store", "shop")
def test_missing_spark_error_names_extra(penstock: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "find_spec", lambda _: None)
    done = penstock("streams", "run", "shop_at_hand:app")
    assert done.code == 2
    assert "pip install 'penstock[spark]'" in done.err


# list and state


@pytest.fixture(params=["sqlite", "rocksdb", "postgresql"])
def state(request: pytest.FixtureRequest) -> str:
    """Create the state that a stream leaves after keys succeeded, failed and expired."""
    url: str = request.getfixturevalue("postgres_url") if request.param == "postgresql" else f"{request.param}:///state"
    app = Streams()

    @app.stream("orders", key=lambda event: event.json()["key"], parts=3, max_retries=9)
    def total(event: StreamEvent, ctx: Context) -> None:
        ctx.state["sum"] = ctx.state.get("sum", 0) + event.json()["amount"]

    harness = StreamHarness(app, "total", url)
    harness.run([{"key": key, "amount": 2} for key in ("ada", "é\x1b[31m", "bob", "ada", "adam")])
    harness.close()
    with closing(open_state(url)) as store:
        started, now = store.start("total", 3), time.time()
        kept = {"soon": Saved(b'{"sum":1}', now + 3_600), "gone": Saved(b"{}", now - 1), FAILURES: Saved(b"2")}
        for key, saved in kept.items():
            part = store.open_part(started, part_of(key, 3))
            with part.transaction() as transaction:
                transaction.save({key: saved})
            part.close()
    return url


def test_list_prints_streams(penstock: Run, state: str) -> None:
    (found,) = penstock("streams", "list", "--state", state, "--json").json
    assert {**found, "identity": len(found["identity"])} == {"stream": "total", "epoch": 2, "parts": 3, "identity": 32}
    (counted,) = penstock("streams", "list", "--state", state, "--json", "--count").json
    assert counted["keys"] == 5
    shown = penstock("streams", "list", "--state", state, "--count").out
    assert "identity" in shown
    assert "keys" in shown


def test_state_is_shown_by_key_without_internal_entries(penstock: Run, state: str) -> None:
    done = penstock("streams", "state", "total", "--state", state)
    assert [line.split()[0] for line in done.out.splitlines()[2:]] == ["ada", "adam", "bob", "soon", "é\\u001b[31m"]
    assert '{"sum":4}' in done.out
    assert "\x1b" not in done.out
    assert (done.code, done.err) == (0, "")


def test_state_prints_json_lines(penstock: Run, state: str) -> None:
    done = penstock("streams", "state", "total", "--state", state, "--json", "--limit", "2")
    first, second = map(json.loads, done.out.splitlines())
    assert first == {"key": "ada", "part": first["part"], "state": {"sum": 4}, "expires_at": None}
    assert second["key"] == "adam"
    assert done.err == "more than 2 keys: use --limit or --prefix\n"
    done = penstock("streams", "state", "total", "--state", state, "--json", "--prefix", "ad", "--limit", "2")
    assert ([json.loads(line)["key"] for line in done.out.splitlines()], done.err) == (["ada", "adam"], "")
    soon = penstock("streams", "state", "total", "soon", "--state", state, "--json").json
    assert (soon["state"], soon["expires_at"][:2]) == ({"sum": 1}, "20")


@pytest.mark.parametrize("key", ["nobody", "gone", FAILURES])
def test_missing_key_error_lists_first_keys(penstock: Run, state: str, key: str) -> None:
    done = penstock("streams", "state", "total", key, "--state", state)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert "stream 'total' has no state for key" in done.err
    assert "first keys: ada, adam, bob, soon, é\\u001b[31m\n" in done.err


def test_unknown_stream_error_lists_existing_streams(penstock: Run, state: str) -> None:
    done = penstock("streams", "state", "totl", "--state", state)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert "stream 'totl' does not exist in " in done.err
    assert done.err.endswith("; existing streams: total\n")
    done = penstock("streams", "state", "total", "--state", state, "--prefix", "zz")
    assert (done.code, done.out) == (0, "")
    assert done.err == "stream 'total' has no state for keys with the prefix 'zz'\n"


def test_missing_state_store_has_no_streams(penstock: Run) -> None:
    done = penstock("streams", "list")
    assert (done.code, done.out) == (0, "")
    assert done.err == "sqlite:///penstock-state has no state of any stream\n"
    assert not Path("penstock-state").exists()
    assert penstock("streams", "list", "--json").json == []
    done = penstock("streams", "state", "total")
    assert done.err.endswith("; existing streams: none\n")
    done = penstock("streams", "list", "--state", "nowhere")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert penstock("streams", "state", "total", "ada", "--prefix", "a").code == 2
