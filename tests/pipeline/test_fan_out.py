"""A relay with several destinations: each gets the events routed to it, and failures of one do not affect others."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from relay_processes import IN_HAND, RelayProcess, assert_delivered, delivered, emit, lines
from valkey import Valkey

from penstock.config.routes import Destination, Route, Routes, parse_routes
from penstock.model.errors import UsageError
from penstock.model.event import EventId
from penstock.model.lifecycle import State
from penstock.model.retry import RetryPolicy
from penstock.model.selection import Selection
from penstock.outbox import Outbox, connect
from penstock.pipeline.lake import layout as lake
from penstock.pipeline.relay.driver import run_relay
from penstock.pipeline.relay.spec import RelayOptions
from tests.support.processes import wait_until
from tests.support.servers import ValkeyServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

WAIT_SECONDS = 180.0
Options = Callable[..., RelayOptions]


@pytest.fixture(params=["postgres", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'penstock.db'}"
    found: str = request.getfixturevalue("postgres_url")
    return found


@pytest.fixture
def outbox(url: str) -> Iterator[Outbox]:
    with connect(url) as opened:
        opened.store.initialise()
        yield opened


@pytest.fixture
def options(url: str) -> Options:
    usual = {"store": url, "once": True, "slice_seconds": 1.0, "lease_seconds": 5.0, "batch": 500}
    return lambda **given: RelayOptions(**(usual | given))


def routes_to(folder: Path, **globs: str) -> Routes:
    """Return routes of event types to folders, by the folders' names."""
    return Routes(
        destinations={name: Destination(name=name, url=f"file://{folder}/{name}") for name in globs},
        routes=[Route(types=[glob], to=[name]) for name, glob in globs.items()],
    )


def events_in(outbox: Outbox, state: State, queue: str) -> set[EventId]:
    found = outbox.store.find(Selection(states=frozenset({state}), queue=queue), limit=10_000)
    return {record.event_id for record in found.records}


def test_each_destination_gets_events_routed_to_it(outbox: Outbox, options: Options, tmp_path: Path) -> None:
    orders = emit(outbox, 700, event_type="orders.created")
    users = emit(outbox, 300, event_type="users.created")
    report = run_relay(options(routes=routes_to(tmp_path, all="*", orders="orders.*", users="users.*")))
    assert_delivered(orders + users, delivered(tmp_path / "all"), repeats=0)
    assert delivered(tmp_path / "orders").keys() == set(map(str, orders))
    assert delivered(tmp_path / "users").keys() == set(map(str, users))
    assert (report.routed, report.published, report.dead) == (1_000, 2_000, 0)
    assert not any(outbox.store.stats().total(state) for state in ("pending", "claimed"))


def test_failing_destination_does_not_affect_other_destinations(
    outbox: Outbox, options: Options, tmp_path: Path
) -> None:
    ids = emit(outbox, 200)
    (tmp_path / "bad").write_text("a file where the folder should be")
    given = options(routes=routes_to(tmp_path, good="*", bad="*"), retry=RetryPolicy(initial_seconds=0.01))
    report = run_relay(given)
    assert_delivered(ids, delivered(tmp_path / "good"), repeats=0)
    assert report.published == 200
    assert events_in(outbox, State.PENDING, "outbox@bad") | events_in(outbox, State.DEAD, "outbox@bad") == set(ids)
    (tmp_path / "bad").unlink()
    outbox.store.replay(Selection(states=frozenset({State.DEAD}), queue="outbox@bad"))
    assert wait_until(lambda: run_relay(given).published >= 0 and len(delivered(tmp_path / "bad")) == 200, WAIT_SECONDS)
    assert_delivered(ids, delivered(tmp_path / "bad"), repeats=0)
    assert_delivered(ids, delivered(tmp_path / "good"), repeats=0)


def test_unrouted_event_is_dead_letter_until_route_is_added(outbox: Outbox, options: Options, tmp_path: Path) -> None:
    (stray,) = emit(outbox, 1, event_type="users.created")
    orders = emit(outbox, 2, event_type="orders.created")
    report = run_relay(options(routes=routes_to(tmp_path, orders="orders.*")))
    assert (report.routed, report.dead) == (2, 1)
    (dead,) = outbox.store.find(Selection(states=frozenset({State.DEAD}))).records
    assert dead.event_id == stray
    assert dead.last_error == "no route matches event type 'users.created'; add one, then replay"
    outbox.store.replay(Selection(ids=frozenset({stray})))
    run_relay(options(routes=routes_to(tmp_path, orders="*")))
    assert_delivered([stray, *orders], delivered(tmp_path / "orders"), repeats=0)


def test_topic_of_route_precedes_destination_and_relay(outbox: Outbox, options: Options, tmp_path: Path) -> None:
    places = {name: f"file://{tmp_path}/{name}" for name in ("one", "two")}
    routes = Routes(
        destinations={
            "one": Destination(name="one", url=places["one"], topic="own.{queue}"),
            "two": Destination(name="two", url=places["two"]),
        },
        routes=[Route(types=["a.*"], to=["one", "two"], topic="routed"), Route(types=["b.*"], to=["one", "two"])],
    )
    for event_type in ("a.x", "b.x"):
        emit(outbox, 1, event_type=event_type)
    run_relay(options(routes=routes, topic="relays.{event_type}"))
    topics = {name: {line["event_type"]: line["topic"] for line in lines(tmp_path / name)} for name in places}
    assert topics["one"] == {"a.x": "routed", "b.x": "own.outbox@one"}
    assert topics["two"] == {"a.x": "routed", "b.x": "relays.b.x"}


def test_events_of_key_stay_in_order_at_each_destination(outbox: Outbox, options: Options, tmp_path: Path) -> None:
    emitted: dict[str, list[str]] = {}
    for number in range(300):
        key = f"key-{number % 7}"
        emitted.setdefault(key, []).append(str(outbox.emit("orders.created", str(number), ordering_key=key)))
    run_relay(options(routes=routes_to(tmp_path, one="*", two="orders.*"), batch=50))
    for name in ("one", "two"):
        found: dict[str, list[str]] = {}
        for line in sorted(lines(tmp_path / name), key=lambda line: line["seq"]):
            found.setdefault(line["ordering_key"], []).append(line["event_id"])
        assert found == emitted


def test_retry_limits_are_set_per_destination(outbox: Outbox, options: Options, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    routes = Routes(
        destinations={
            "strict": Destination(name="strict", url=f"file://{tmp_path}/file/a", max_attempts=1),
            "patient": Destination(name="patient", url=f"file://{tmp_path}/file/b", retry_delay=100),
        },
        routes=[Route(types=["*"], to=["strict", "patient"])],
    )
    ids = emit(outbox, 3)
    run_relay(options(routes=routes, retry=RetryPolicy(jitter=0)))
    assert events_in(outbox, State.DEAD, "outbox@strict") == set(ids)
    waiting = outbox.store.find(Selection(states=frozenset({State.PENDING}), queue="outbox@patient")).records
    assert {record.event_id for record in waiting} == set(ids)
    assert all((record.available_at - outbox.store.now()).total_seconds() > 20 for record in waiting)


def test_relay_needs_either_destination_or_routes(url: str) -> None:
    with pytest.raises(UsageError, match="set either a destination"):
        RelayOptions(store=url)
    with pytest.raises(UsageError, match="lake destinations do not support steps"):
        RelayOptions(store=url, destination="lake:/x", step="step_functions:everything")
    with pytest.raises(UsageError, match="not both"):
        RelayOptions(store=url, destination="null:", routes=parse_routes(["*=null:"]))
    with pytest.raises(UsageError, match="unknown destination scheme 'nowhere'"):
        RelayOptions(store=url, routes=parse_routes(["*=nowhere://x"]))


def test_lake_can_be_one_of_several_destinations(
    outbox: Outbox, options: Options, tmp_path: Path, spark: "SparkSession"
) -> None:
    ids = emit(outbox, 50)
    routes = Routes(
        destinations={
            "lake": Destination(name="lake", url=f"lake:{tmp_path}/lake"),
            "files": Destination(name="files", url=f"file://{tmp_path}/files"),
        },
        routes=[Route(types=["*"], to=["lake", "files"])],
    )
    assert run_relay(options(routes=routes)).published == 100
    assert_delivered(ids, delivered(tmp_path / "files"), repeats=0)
    assert {row.event_id for row in lake.read(spark, f"{tmp_path}/lake").collect()} == set(map(str, ids))


@pytest.mark.slow
@pytest.mark.crash
def test_killed_relay_routes_each_event_once(postgres_url: str, tmp_path: Path) -> None:
    with connect(postgres_url) as outbox:
        outbox.store.initialise()
        routes = [f"*=file://{tmp_path}/one", f"*=file://{tmp_path}/two"]
        ids = emit(outbox, 10_000)
        with RelayProcess(tmp_path / "relay", store=postgres_url, routes=routes, master=None) as relay:
            assert wait_until(lambda: len(delivered(tmp_path / "one")) > 200, WAIT_SECONDS), relay.log
        assert outbox.store.stats().total("published") < 2 * len(ids), "it was killed in the middle"
        with RelayProcess(tmp_path / "again", store=postgres_url, routes=routes, master=None) as relay:
            assert wait_until(lambda: _settled(outbox), WAIT_SECONDS), relay.log
        stats = {queue.queue: queue.published for queue in outbox.store.stats().queues}
        assert sorted(stats.values()) == [len(ids), len(ids)], stats
        for name in ("one", "two"):
            assert_delivered(ids, delivered(tmp_path / name), repeats=IN_HAND)


@pytest.mark.slow
def test_hanging_destination_does_not_delay_others(
    postgres_url: str, valkey_server: ValkeyServer, tmp_path: Path
) -> None:
    """The relay runs in a separate process and chooses its number of task slots itself."""
    with connect(postgres_url) as outbox:
        outbox.store.initialise()
        hanging = f"valkey://127.0.0.1:{valkey_server.port}/0?timeout_seconds=3"
        routes = [f"*=file://{tmp_path}/good", f"*={hanging}"]
        with RelayProcess(tmp_path / "relay", store=postgres_url, routes=routes, master=None) as relay:
            ids = emit(outbox, 10)
            assert wait_until(lambda: len(delivered(tmp_path / "good")) == 10, WAIT_SECONDS), relay.log
            valkey_server.freeze()
            try:
                ids += _emit_steadily(outbox, tmp_path / "good")
            finally:
                valkey_server.thaw()
            assert wait_until(lambda: _settled(outbox), WAIT_SECONDS), relay.log
            relay.terminate()
            assert relay.wait() == 0, relay.log
        assert_delivered(ids, delivered(tmp_path / "good"), repeats=0)
        with Valkey(port=valkey_server.port) as client:
            entries = client.xrange("crash.tested")
            assert {fields[b"event_id"].decode() for _, fields in entries} >= set(map(str, ids))
            client.flushall()


def _emit_steadily(outbox: Outbox, folder: Path) -> list[EventId]:
    """Emit twenty times, each time after the last events were delivered despite the hanging destination."""
    ids: list[EventId] = []
    for _ in range(20):
        ids += emit(outbox, 5)
        emitted = set(map(str, ids))
        assert wait_until(partial(_all_there, emitted, folder), WAIT_SECONDS)
    return ids


def _all_there(emitted: set[str], folder: Path) -> bool:
    return emitted <= delivered(folder).keys()


def _settled(outbox: Outbox) -> bool:
    stats = outbox.store.stats()
    return not (stats.total("pending") or stats.total("claimed"))
