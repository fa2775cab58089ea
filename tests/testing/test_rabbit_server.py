"""The RabbitMQ test server consists of several processes, and leaves none of them behind."""

import subprocess
import sys
from pathlib import Path

import aiormq
import pytest

from penstock.publish.event_loop import EventLoopThread
from tests.support.processes import living, wait_until
from tests.support.servers import RabbitServer

pytestmark = pytest.mark.crash

# RabbitMQ writes confirmed messages to disk, but the declaration of a queue only slightly later.
SYNC = "mnesia:sync_log()."
STARTS_AND_WAITS = """
import sys
from tests.support.servers import RabbitServer
server = RabbitServer()
server.start()
print(server.folder, *server.family(), flush=True)
sys.stdin.read()
"""


async def keep_one(url: str) -> None:
    connection = await aiormq.connect(url)
    channel = await connection.channel()
    await channel.queue_declare("kept", durable=True)
    await channel.basic_publish(b"one", routing_key="kept", properties=aiormq.spec.Basic.Properties(delivery_mode=2))
    await connection.close()


async def count_kept(url: str) -> int:
    connection = await aiormq.connect(url)
    channel = await connection.channel()
    declared = await channel.queue_declare("kept", passive=True)
    await connection.close()
    return declared.message_count or 0


def test_confirmed_messages_survive_kill_on_same_port(rabbit_server: RabbitServer) -> None:
    background = EventLoopThread("test")
    with RabbitServer() as server:
        background.run(keep_one(server.url()))
        server.control("eval", SYNC)
        url, family = server.url(), server.family()
        assert len(family) > 2, "the server, its port mapper, and what waits for either"
        server.kill()
        assert family.isdisjoint(living())
        server.start()
        assert server.url() == url
        assert background.run(count_kept(url)) == 1
        family, folder = server.family(), server.folder
    background.close()
    assert family.isdisjoint(living())
    assert not folder.exists()


def test_rabbit_server_ends_with_owner_process(rabbit_server: RabbitServer) -> None:
    command = [sys.executable, "-c", STARTS_AND_WAITS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        folder, *pids = owner.stdout.readline().split()
        family = {int(pid) for pid in pids}
        assert family <= living().keys()
        owner.kill()
        owner.communicate()
    assert wait_until(lambda: family.isdisjoint(living()), 30)
    assert wait_until(lambda: not Path(folder).exists(), 30)
