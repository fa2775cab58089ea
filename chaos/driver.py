"""The processes of one run of the program, with the JVM and all tasks: start, watch, kill and clean up."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from chaos import program
from chaos.program import Settings
from tests.support import crashes
from tests.support.processes import of_session, wait_until

END_SECONDS = 60.0


class Driver:
    """One run of the program, in a separate process session, by which all its processes can be found."""

    def __init__(self, settings: Settings, log: Path, plan: Path) -> None:
        self.log = log
        # For files that a killed JVM leaves behind. Not in the trial's folder, because socket paths must be short.
        self._scratch = tempfile.mkdtemp(prefix="chaos-")
        own = {"SPARK_LOCAL_DIRS": self._scratch, "TMPDIR": self._scratch}
        java = {"JDK_JAVA_OPTIONS": f"-Djava.io.tmpdir={self._scratch}"}
        environment = {**os.environ, **own, **java, crashes.VARIABLE: f"@{plan}"}
        environment.pop(crashes.DRIVER_VARIABLE, None)
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", program.__name__, settings.text()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )
        self.pid = self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def status(self) -> int | None:
        return self._process.poll()

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def processes(self) -> list[int]:
        """Return the living processes of the run, including those that outlive the driver."""
        return of_session(self.pid, self._scratch)

    def kill(self, *pids: int) -> None:
        """Send SIGKILL to these processes, or to all of the run."""
        for pid in pids or self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill all processes of the run, wait until they have ended, and delete their temporary files."""

        def gone() -> bool:
            self.kill()
            return not self.processes()

        wait_until(gone, END_SECONDS)
        self._process.wait()
        shutil.rmtree(self._scratch, ignore_errors=True)
