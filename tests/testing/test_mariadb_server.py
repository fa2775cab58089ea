"""The MariaDB test server keeps committed data over a crash, and cleans up."""

import subprocess
import sys
from pathlib import Path

import pymysql
import pytest

from tests.support.processes import living, wait_until
from tests.support.servers import MariadbServer

pytestmark = pytest.mark.crash

STARTS_AND_WAITS = """
import sys
from tests.support.servers import MariadbServer
server = MariadbServer()
server.start()
print(server.folder, server.pid, flush=True)
sys.stdin.read()
"""


def test_databases_are_created_and_dropped(mariadb_server: MariadbServer) -> None:
    url = mariadb_server.create_database()
    name = url.rpartition("/")[2]
    assert (name,) in mariadb_server.execute("SHOW DATABASES")
    held = pymysql.connect(
        host="127.0.0.1", port=mariadb_server.port, user="penstock", password="penstock", database=name
    )
    mariadb_server.drop_database(url)
    assert (name,) not in mariadb_server.execute("SHOW DATABASES")
    with pytest.raises(pymysql.OperationalError):
        held.ping(reconnect=False)


@pytest.mark.usefixtures("mariadb_server")
def test_commits_are_flushed_to_disk_unless_disabled() -> None:
    asked = "SELECT @@innodb_flush_log_at_trx_commit"
    with MariadbServer() as server:
        assert server.execute(asked) == [(1,)]
    with MariadbServer(fsync=False, settings={"innodb-autoinc-lock-mode": 2}) as server:
        assert server.execute(asked) == [(2,)]
        assert server.execute("SELECT @@innodb_autoinc_lock_mode") == [(2,)]


@pytest.mark.usefixtures("mariadb_server")
def test_committed_rows_survive_kill_on_same_port() -> None:
    with MariadbServer() as server:
        server.create_database("kept")
        server.execute("CREATE TABLE kept.numbers (number int)")
        server.execute("INSERT INTO kept.numbers VALUES (7)")
        url, pid = server.url(), server.pid
        server.kill()
        assert pid not in living()
        server.start()
        assert server.url() == url
        assert server.execute("SELECT number FROM kept.numbers") == [(7,)]
        folder, pid = server.folder, server.pid
    assert pid not in living()
    assert not folder.exists()


@pytest.mark.usefixtures("mariadb_server")
def test_mariadb_server_ends_with_owner_process() -> None:
    command = [sys.executable, "-c", STARTS_AND_WAITS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        folder, pid = owner.stdout.readline().split()
        assert int(pid) in living()
        owner.kill()
        owner.communicate()
    assert wait_until(lambda: int(pid) not in living(), 30)
    assert wait_until(lambda: not Path(folder).exists(), 30)
