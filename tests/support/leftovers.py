"""A pytest plugin: gives a run its own temporary folder, and checks that nothing outlives the run.

All processes of a run, servers and JVMs included, inherit `PENSTOCK_TEST_RUN` and `TMPDIR`. After the last test, the
process that started the run waits for the others to end and lists those that don't. It also lists the remaining files
in the folder, unless the run killed processes, and removes the folder. Leftovers fail the run. A run in a single
process checks nothing, since the process's resources end with the process.
"""

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.processes import command_of, living, wait_until

VARIABLE = "PENSTOCK_TEST_RUN"
END_SECONDS = 60.0


class Leftovers:
    """Processes and files of a run, identified by its environment variable and its folder."""

    def __init__(self) -> None:
        # A short name: paths of Unix sockets are limited to about 100 characters.
        self.folder = Path(tempfile.mkdtemp(prefix="pt-"))
        self.folder.chmod(0o711)  # servers with other accounts have folders in it
        self._previous = os.environ.get("TMPDIR")
        os.environ.update({VARIABLE: self.folder.name, "TMPDIR": str(self.folder)})
        tempfile.tempdir = None

    def processes(self) -> list[str]:
        """Wait for the processes of the run to end. Return the processes that don't."""
        wait_until(lambda: not self._pids(), END_SECONDS)
        return [f"process {pid}: {command_of(pid)[:200].decode(errors='replace')}" for pid in self._pids()]

    def files(self) -> list[str]:
        """Return the files in the folder, except the folders of single tests."""
        return sorted(str(path) for path in self.folder.iterdir() if not path.name.startswith("pytest-of-"))

    def close(self) -> None:
        """Remove the folder, and restore the process's previous temporary folder."""
        shutil.rmtree(self.folder, ignore_errors=True)
        del os.environ[VARIABLE], os.environ["TMPDIR"]
        if self._previous is not None:
            os.environ["TMPDIR"] = self._previous
        tempfile.tempdir = None

    def _pids(self) -> list[int]:
        return sorted(pid for pid in living() if pid != os.getpid() and self._is_ours(pid))

    def _is_ours(self, pid: int) -> bool:
        with suppress(OSError):
            return f"{VARIABLE}={self.folder.name}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return False


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.stash[LEFTOVERS] = Leftovers()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    leftovers = session.config.stash.get(LEFTOVERS, None)
    if leftovers is None or not session.config.getoption("numprocesses", None):
        return  # a run in one process can't know which resources remain after its end
    killed = "not crash" not in session.config.option.markexpr
    session.config.stash[FOUND] = found = leftovers.processes() + ([] if killed else leftovers.files())
    if found and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for one in config.stash.get(FOUND, []):
        terminalreporter.write_line(f"left behind: {one}", red=True)


def pytest_unconfigure(config: pytest.Config) -> None:
    leftovers = config.stash.get(LEFTOVERS, None)
    if leftovers is not None:
        leftovers.close()


LEFTOVERS = pytest.StashKey[Leftovers]()
FOUND = pytest.StashKey[list[str]]()
