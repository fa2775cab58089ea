"""Timers and windows on Spark fire exactly once and without new events, also if another driver takes over."""

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock import Outbox, Streams, connect
from penstock.model.lifecycle import State
from penstock.model.selection import Selection
from penstock.pipeline.streams.driver import run_streams
from penstock.pipeline.streams.run import StreamRun
from penstock.runtime.store_cache import close_stores
from penstock.streams import Timer, Tumbling, Window
from penstock.streams.context import Context
from penstock.streams.event import StreamEvent
from penstock.streams.state.registry import open_state
from tests.support.processes import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

KEYS = 10
SECONDS = 200.0
WINDOW_SECONDS = 2.0


@pytest.fixture
def outbox(tmp_path: Path) -> Iterator[Outbox]:
    with connect(f"sqlite:///{tmp_path}/penstock.db") as made:
        made.store.initialise()
        yield made
    close_stores()


def application(tmp_path: Path, *, idle_close_seconds: float = 1.0) -> Streams:
    app = Streams(f"sqlite:///{tmp_path}/penstock.db", state=f"sqlite:///{tmp_path}/state")
    mended = str(tmp_path / "mended")

    @app.stream("orders", parts=3, retry_seconds=0.05, max_retries=1)
    def remind(event: StreamEvent, ctx: Context) -> None:
        ctx.state["events"] = ctx.state.get("events", 0) + 1
        ctx.set_timer("remind", delay_seconds=event.json()["after"])

    @app.on_timer("remind")
    def reminded(timer: Timer, ctx: Context) -> None:
        ctx.emit("reminded", {"key": ctx.key, "events": ctx.state["events"]}, queue="reminded")
        if ctx.key == "failing" and not Path(mended).exists():
            raise ValueError("not mended")
        if ctx.key == "killing":
            os._exit(1)

    @app.stream("visits", parts=2, window=Tumbling(WINDOW_SECONDS), idle_close_seconds=idle_close_seconds)
    def visits(event: StreamEvent, ctx: Context) -> None:
        ctx.state["count"] = ctx.state.get("count", 0) + 1

    @app.on_close("visits")
    def closed(window: Window, ctx: Context) -> None:
        ctx.emit("closed", {"key": ctx.key, "start": str(window.start), **ctx.state}, queue="closed")

    return app


def emit(outbox: Outbox, queue: str, keys: list[str], **payload: float) -> None:
    outbox.emit_many(outbox.event("given", payload, queue=queue, partition_key=key) for key in keys)


def payloads(outbox: Outbox, queue: str) -> list[dict[str, object]]:
    found = outbox.store.find(Selection(queue=queue), limit=1_000).records
    return [json.loads(record.payload) for record in found]


@contextmanager
def running(app: Streams, spark: "SparkSession", *names: str) -> Iterator[None]:
    """Run the streams in a thread until the block ends."""
    stop, ended = threading.Event(), []

    def run() -> None:
        try:
            run_streams(app, spark=spark, names=names, stop=stop)
        except Exception as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(SECONDS)
    assert not thread.is_alive()
    assert ended == []


def test_timers_fire_once_without_new_events(spark: "SparkSession", outbox: Outbox, tmp_path: Path) -> None:
    app = application(tmp_path)
    keys = [f"key {number}" for number in range(KEYS)]
    emit(outbox, "orders", keys, after=0)
    emit(outbox, "orders", [f"later {key}" for key in keys], after=5)
    counts = run_streams(app, spark=spark, names=["remind"], once=True)
    assert counts["remind"].applied == 2 * KEYS
    assert {one["key"] for one in payloads(outbox, "reminded")} >= set(keys), "what is due at once fires at once"
    with running(app, spark, "remind"):
        assert wait_until(lambda: len(payloads(outbox, "reminded")) >= 2 * KEYS, SECONDS)
    emit(outbox, "orders", ["another"], after=0)
    run_streams(app, spark=spark, names=["remind"], once=True)
    found = Counter(one["key"] for one in payloads(outbox, "reminded"))
    assert found == dict.fromkeys([*keys, *(f"later {key}" for key in keys), "another"], 1)


def dead(outbox: Outbox) -> dict[str, str]:
    """Return the errors of the dead timers by key."""
    chosen = Selection(queue="streams/remind", states=frozenset({State.DEAD}))
    found = outbox.store.find(chosen, limit=10).records
    return {json.loads(record.payload)["key"]: record.last_error or "" for record in found}


@pytest.mark.crash
def test_failing_and_poison_timers_become_dead_letters_alone(
    spark: "SparkSession", outbox: Outbox, tmp_path: Path
) -> None:
    app = application(tmp_path)
    keys = ["failing", "killing", *(f"key {number}" for number in range(KEYS))]
    emit(outbox, "orders", keys, after=0)
    with running(app, spark, "remind"):
        assert wait_until(lambda: len(dead(outbox)) == 2 and len(payloads(outbox, "reminded")) >= KEYS, SECONDS)
    assert dead(outbox)["failing"].startswith("ValueError: not mended")
    assert dead(outbox)["killing"].startswith("the process died each time it fired this timer alone")
    (tmp_path / "mended").touch()
    failed = Selection(queue="streams/remind", states=frozenset({State.DEAD}), error="not mended")
    assert outbox.store.replay(failed) == 1
    run_streams(app, spark=spark, names=["remind"], once=True)
    found = Counter(one["key"] for one in payloads(outbox, "reminded"))
    assert found == dict.fromkeys(set(keys) - {"killing"}, 1)
    assert dead(outbox).keys() == {"killing"}


def test_windows_close_once_across_drivers(spark: "SparkSession", outbox: Outbox, tmp_path: Path) -> None:
    app = application(tmp_path)
    keys = [f"key {number}" for number in range(KEYS)]
    emit(outbox, "visits", keys)
    run_streams(app, spark=spark, names=["visits"], once=True)
    for _ in range(2):
        with running(app, spark, "visits"):
            assert wait_until(lambda: len(payloads(outbox, "closed")) >= KEYS, SECONDS)
    assert Counter(one["key"] for one in payloads(outbox, "closed")) == dict.fromkeys(keys, 1)
    assert {one["count"] for one in payloads(outbox, "closed")} == {1}
    emit(outbox, "visits", keys)
    with running(app, spark, "visits"):
        assert wait_until(lambda: len(payloads(outbox, "closed")) >= 2 * KEYS, SECONDS)
    assert Counter(one["key"] for one in payloads(outbox, "closed")) == dict.fromkeys(keys, 2)
    assert payloads(outbox, "visits/late") == []


def test_windows_stay_open_until_source_has_been_read(spark: "SparkSession", outbox: Outbox, tmp_path: Path) -> None:
    emit(outbox, "visits", ["key"])
    run_streams(application(tmp_path, idle_close_seconds=60.0), spark=spark, names=["visits"], once=True)
    emit(outbox, "visits", ["key"])  # not yet read when the driver has run for longer than `idle_close_seconds`
    app = application(tmp_path, idle_close_seconds=0.01)
    stream, state, over = app.streams["visits"], open_state(app.state), time.time() + WINDOW_SECONDS + 0.1
    with closing(state):
        run = StreamRun(spark, app, stream, state.start(stream.name, stream.parts), parallelism=1)
    assert wait_until(lambda: time.time() > over, SECONDS)
    run.tick()
    run.finish()
    assert payloads(outbox, "closed") == []
