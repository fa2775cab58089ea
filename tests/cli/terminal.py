"""A pseudo-terminal for tests of commands that ask for confirmation."""

import os
import pty
import subprocess
from collections.abc import Callable

Start = Callable[..., "subprocess.Popen[bytes]"]


class Terminal:
    """A command with a terminal as standard input and standard error, and with `output_too` as standard output."""

    def __init__(self, process: Start, *arguments: str, output_too: bool = False) -> None:
        self._own, theirs = pty.openpty()
        streams = {"stdin": theirs, "stderr": theirs} | ({"stdout": theirs} if output_too else {})
        self.process = process(*arguments, **streams)
        os.close(theirs)
        self.shown = ""

    def await_text(self, text: str) -> None:
        while text not in self.shown:
            try:
                self.shown += os.read(self._own, 1_000).decode()
            except OSError:  # the process has closed its end of the terminal
                raise AssertionError(f"it ended without {text!r}: {self.shown!r}") from None

    def type(self, text: str) -> None:
        os.write(self._own, text.encode())

    def end(self) -> tuple[int, bytes]:
        assert self.process.stdout is not None
        out = self.process.stdout.read()
        code = self.process.wait(timeout=60)
        os.close(self._own)
        return code, out
