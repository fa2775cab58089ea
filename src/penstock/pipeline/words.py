"""What Spark's Java and its Pythons say on standard error, less what is nobody's concern. Pure: bytes in, bytes out."""

from collections.abc import Iterator

_BEGIN = b"Traceback (most recent call last):"
_HUNG_UP = (b"BrokenPipeError", b"ConnectionResetError")
_DAEMON = b"pyspark/daemon.py"


class Words:
    """Leaves out the stack traces of Pythons that Spark has hung up on.

    Spark does so with those that it had a query planned by and that were idle for a minute since, and with all when it
    ends. Its daemon calls that an error, and shows it to whoever watches a stream run.
    """

    def __init__(self) -> None:
        self._begun = b""
        self._trace: list[bytes] = []

    def heard(self, told: bytes) -> bytes:
        """What is to be shown, now that this was said; a line is shown when it is whole."""
        *lines, self._begun = (self._begun + told).split(b"\n")
        return b"".join(line + b"\n" for whole in lines for line in self._shown(whole))

    def rest(self) -> bytes:
        """What is still to be shown when nothing more comes."""
        return b"".join(line + b"\n" for line in self._trace) + self._begun

    def _shown(self, line: bytes) -> Iterator[bytes]:
        if line == _BEGIN or (self._trace and line.startswith(b" ")):
            if line == _BEGIN:  # the one before it has no end
                yield from self._trace
                self._trace = []
            self._trace.append(line)
            return
        trace, self._trace = self._trace, []
        if not (line.startswith(_HUNG_UP) and any(_DAEMON in part for part in trace)):
            yield from (*trace, line)
