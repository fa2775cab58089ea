"""The test servers keep their data over stops and crashes, and leave nothing behind."""

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from threading import Thread
from typing import TypeVar

import nats
import psycopg
import pytest
import valkey
from nats.js import JetStreamContext

from tests.support.processes import ServerFailed, living, wait_until
from tests.support.servers import NatsServer, PostgresServer, Server, ValkeyServer

Result = TypeVar("Result")

pytestmark = pytest.mark.crash

STARTS_AND_WAITS = """
import sys
from tests.support import servers
server = getattr(servers, sys.argv[1])(fsync=False)
server.start()
print(server.pid, server.folder, flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module", params=[PostgresServer, ValkeyServer, NatsServer])
def kind(
    request: pytest.FixtureRequest,
    postgres_server: PostgresServer,
    valkey_server: ValkeyServer,
    nats_server: NatsServer,
) -> type[Server]:
    """Each class of server. The shared servers are requested first, because they check for missing binaries."""
    chosen: type[Server] = request.param
    return chosen


@pytest.fixture(scope="module")
def own_server(kind: type[Server]) -> Iterator[Server]:
    with kind(fsync=False) as server:
        yield server


@pytest.fixture
def server(own_server: Server) -> Server:
    """A server that may be stopped and killed. The next test gets it running again, with its data."""
    own_server.start()
    return own_server


def keep(server: Server, text: str) -> None:
    match server:
        case PostgresServer():
            with psycopg.connect(server.url()) as connection:
                connection.execute("CREATE TABLE IF NOT EXISTS kept (body text)")
                connection.execute("INSERT INTO kept VALUES (%s)", [text])
        case ValkeyServer():
            with valkey.Valkey.from_url(server.url()) as client:
                client.rpush("kept", text)
        case NatsServer():
            with_stream(server, lambda stream: stream.publish("kept", text.encode()))


def kept(server: Server) -> list[str]:
    match server:
        case PostgresServer():
            with psycopg.connect(server.url()) as connection:
                return [body for (body,) in connection.execute("SELECT body FROM kept")]
        case ValkeyServer():
            with valkey.Valkey.from_url(server.url(), decode_responses=True) as client:
                return list(client.lrange("kept", 0, -1))
        case NatsServer():
            return with_stream(server, messages_kept)
        case _:
            raise AssertionError(server)


def with_stream(server: NatsServer, work: Callable[[JetStreamContext], Awaitable[Result]]) -> Result:
    async def connected() -> Result:
        async with await nats.connect(server.url(), allow_reconnect=False) as client:
            streams = client.jetstream()
            await streams.add_stream(name="KEPT", subjects=["kept"])
            return await work(streams)

    return asyncio.run(connected())


async def messages_kept(streams: JetStreamContext) -> list[str]:
    count = (await streams.stream_info("KEPT")).state.messages
    found = [await streams.get_msg("KEPT", number) for number in range(1, count + 1)]
    return [(message.data or b"").decode() for message in found]


def family(server: Server) -> set[int]:
    return {server.pid} | {pid for pid, parent in living().items() if parent == server.pid}


def test_started_server_answers(server: Server) -> None:
    keep(server, "answered")
    assert server.running
    assert "answered" in kept(server)


def test_restart_keeps_data_and_port(server: Server) -> None:
    keep(server, "restarted")
    port, pid = server.port, server.pid
    server.restart()
    assert server.port == port
    assert server.pid != pid
    assert "restarted" in kept(server)


def test_acknowledged_messages_survive_kill(server: Server) -> None:
    keep(server, "before the kill")
    processes = family(server)
    server.kill()
    assert not server.running
    assert processes.isdisjoint(living())
    server.start()
    keep(server, "after the kill")
    assert {"before the kill", "after the kill"} <= set(kept(server))


def test_repeated_start_and_stop_have_no_effect(server: Server) -> None:
    pid = server.pid
    server.start()
    assert server.pid == pid
    server.stop()
    server.stop()
    server.kill()
    assert not server.running


def test_closed_server_leaves_no_process_or_folder(kind: type[Server]) -> None:
    with kind(fsync=False) as server:
        processes, folder = family(server), server.folder
        assert server.pid in living()
        assert folder.exists()
    assert processes.isdisjoint(living())
    assert not folder.exists()


def test_server_outlives_starting_thread(kind: type[Server]) -> None:
    server = kind(fsync=False)
    starter = Thread(target=server.start)
    starter.start()
    starter.join()
    with server:
        keep(server, "one")
        assert kept(server) == ["one"]


@pytest.mark.parametrize("killed", [True, False])
def test_server_ends_with_owner_process(kind: type[Server], killed: bool) -> None:
    """The owner is killed, or exits without closing its server."""
    command = [sys.executable, "-c", STARTS_AND_WAITS, kind.__name__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid, _, folder = owner.stdout.readline().strip().partition(" ")
        assert int(pid) in living()
        if killed:
            owner.kill()
        owner.communicate()
    assert wait_until(lambda: int(pid) not in living(), 30)
    assert wait_until(lambda: not Path(folder).exists(), 30)


def test_kill_of_postgres_ends_busy_backends(postgres_server: PostgresServer) -> None:
    with PostgresServer(fsync=False) as server, closing(psycopg.connect(server.url())) as connection:
        connection.pgconn.send_query(b"DO 'BEGIN LOOP END LOOP; END'")
        backend = connection.info.backend_pid
        assert backend in living()
        server.kill()
        assert backend not in living()


def test_postgres_settings_apply_after_immediate_stop(postgres_server: PostgresServer) -> None:
    with PostgresServer(fsync=False, settings={"max_connections": 17}) as server:
        keep(server, "one")
        server.stop("immediate")
        server.start()
        assert kept(server) == ["one"]
        with psycopg.connect(server.url()) as connection:
            assert connection.execute("SHOW max_connections").fetchone() == ("17",)


def test_failed_start_shows_log_and_leaves_no_process(postgres_server: PostgresServer) -> None:
    server = PostgresServer(settings={"no_such_setting": 1})
    with pytest.raises(ServerFailed, match="no_such_setting"):
        server.start()
    assert not server.running


def test_new_database_is_empty(postgres_server: PostgresServer, postgres_url: str) -> None:
    other = postgres_server.create_database("named_by_the_caller")
    assert other == postgres_server.url("named_by_the_caller")
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE TABLE mine (id int)")
    with psycopg.connect(other) as connection:
        assert connection.execute("SELECT to_regclass('mine')").fetchone() == (None,)
    postgres_server.drop_database(other)


def test_frozen_server_stops_until_thawed(server: Server) -> None:
    server.freeze()
    status = Path(f"/proc/{server.pid}/status").read_text() if Path("/proc/self").exists() else "(stopped)"
    server.thaw()
    assert "(stopped)" in status
    keep(server, "thawed")
    assert "thawed" in kept(server)


def test_settings_apply_to_nats_server(nats_server: NatsServer) -> None:
    with NatsServer(settings={"authorization": {"token": "known"}, "max_payload": 4_096}) as server:

        async def max_payload() -> int:
            async with await nats.connect(server.url("known"), allow_reconnect=False) as client:
                return client.max_payload

        assert asyncio.run(max_payload()) == 4_096
