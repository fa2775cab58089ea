"""Processes, folders and ports for test servers: isolated, found by number, and always cleaned up."""

import os
import pwd
import random
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from penstock.model.errors import PenstockError

POLL_SECONDS = 0.02
# Below the ephemeral port range: no outgoing connection can take a server's port between a stop and a start.
PORTS = range(15_000, 32_000)
SHARED_FOLDERS = ("/tmp", "/var/tmp")


class ServerFailed(PenstockError):
    """A test server can't be started or stopped. If it wrote a log, the message ends with the last lines."""


class Account(NamedTuple):
    """A system account that runs a server."""

    name: str
    uid: int
    gid: int


class Guard:
    """A shell that waits for the end of its input, then ends the guarded process and removes the folder.

    The input ends with its owner, even if the owner is killed. The kernel's alternative, PR_SET_PDEATHSIG, would end a
    server together with the *thread* that started it, and needs code between fork and exec, which is unsafe with
    threads.
    """

    _SCRIPT = """
        pid=
        while read -r line; do pid=$line; done
        if [ -n "$pid" ]; then
            kill -s "$1" "$pid"
            tries=30
            while [ "$tries" -gt 0 ] && kill -s 0 "$pid"; do sleep 0.1; tries=$((tries - 1)); done
            kill -s KILL "$pid"
        fi
        rm -rf -- "$2"
    """

    def __init__(self, folder: Path, end_signal: signal.Signals) -> None:
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", self._SCRIPT, "guard", end_signal.name.removeprefix("SIG"), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={"PATH": os.pathsep.join([os.environ.get("PATH", ""), os.defpath])},
            bufsize=0,
            start_new_session=True,
        )

    def watch(self, pid: int | None) -> None:
        """Guard this process from now on; None guards no process."""
        assert self._shell.stdin is not None
        self._shell.stdin.write(f"{pid or ''}\n".encode())

    def dismiss(self) -> None:
        """End the guarded process, remove the folder, and wait for the shell."""
        assert self._shell.stdin is not None
        self._shell.stdin.close()
        self._shell.wait()


def spawn(command: list[str], *, log: Path, folder: Path, account: Account | None) -> subprocess.Popen[bytes]:
    """Start a process in a new session, which shields it from Ctrl-C in the terminal.

    Its temporary files are in its folder: the account may not be allowed to write elsewhere.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**inherited, "TMPDIR": str(folder)},
            start_new_session=True,
            user=account and account.uid,
            group=account and account.gid,
            extra_groups=account and [],
        )


def runs(command: list[str], account: Account | None = None) -> bool:
    """Return True if the account can execute the command and the command succeeds."""
    try:
        done = subprocess.run(
            command,
            cwd="/",
            capture_output=True,
            user=account and account.uid,
            group=account and account.gid,
            extra_groups=account and [],
        )
    except OSError:
        return False
    return done.returncode == 0


def unprivileged_account() -> Account | None:
    """Return an account for servers that refuse to run as root; None if the current user is not root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(name, entry.pw_uid, entry.pw_gid)
    raise ServerFailed("root can't run PostgreSQL, and there is no account postgres or nobody: run as another user")


def temporary_folder(prefix: str, account: Account | None) -> Path:
    """Create a folder that the account owns and can reach: some TMPDIRs are closed to other accounts."""
    bases = [Path(base).resolve() for base in (tempfile.gettempdir(), *SHARED_FOLDERS)]
    base = next((base for base in bases if account is None or _open_to_all(base)), bases[0])
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=base))
    if account is not None:
        os.chown(folder, account.uid, account.gid)
    return folder


def _open_to_all(folder: Path) -> bool:
    return folder.is_dir() and all(part.stat().st_mode & 0o001 for part in (folder, *folder.parents))


def free_port() -> int:
    for port in random.sample(PORTS, 200):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise ServerFailed(f"none of 200 ports between {PORTS.start} and {PORTS.stop} is free on 127.0.0.1")


def wait_until(holds: Callable[[], bool], seconds: float) -> bool:
    """Wait for a condition; return False if the condition didn't hold in time."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def living() -> dict[int, int]:
    """Return the parent of every living process, from /proc, because slim images lack `ps`; else from `ps`."""
    rows = _rows_of_proc() if Path("/proc/self/stat").exists() else _rows_of_ps()
    # Skip zombies: a zombie holds no resources, and in a container may never be reaped.
    return {pid: parent for pid, parent, state in rows if state[0] not in "ZX"}


def command_of(pid: int) -> bytes:
    """Return a process's program and arguments; empty if the process has ended, or without /proc."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def of_session(number: int, mark: str) -> list[int]:
    """Return the living processes of a session that started with `mark` in their environment.

    The mark is needed because the system reuses the number of a session that has ended. Without /proc, only the number
    is checked.
    """
    return [pid for pid in living() if _session(pid) == number and _is_marked(pid, mark.encode())]


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def _is_marked(pid: int, mark: bytes) -> bool:
    try:
        return mark in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return not Path("/proc/self").exists()


def _rows_of_proc() -> Iterator[tuple[int, int, str]]:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # "pid (command) state ppid …", where the command may contain any character.
            state, parent, *_ = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
        except (OSError, ValueError):
            continue  # the process has ended in the meantime
        yield int(folder.name), int(parent), state


def _rows_of_ps() -> Iterator[tuple[int, int, str]]:
    listing = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,state="], capture_output=True, text=True, check=True)
    for line in listing.stdout.splitlines():
        pid, parent, state = line.split()
        yield int(pid), int(parent), state
