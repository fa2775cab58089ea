"""`stdout:` prints one line of JSON per event, for inspection and for pipes into other programs."""

import fcntl
import sys
from collections.abc import Sequence

from penstock.config.options import known_options
from penstock.model.errors import PublishError
from penstock.model.outcome import PUBLISHED, Outcome
from penstock.publish.api import Message, Unpicklable
from penstock.publish.json_message import as_json_line


class ConsolePublisher(Unpicklable):
    """Publisher to standard output. `path` names another output, such as that of the parent process."""

    in_order = True

    def __init__(self, path: str | None = None) -> None:
        self._path = path

    def publish(self, messages: Sequence[Message]) -> dict[int, Outcome]:
        lines = "".join(map(as_json_line, messages))
        try:
            if self._path is None:
                # Resolve sys.stdout at each call: it may be replaced while the process runs.
                sys.stdout.write(lines)
                sys.stdout.flush()
            else:
                with open(self._path, "a") as output:
                    # Without the lock, the batches of two writers to a pipe could mix in the middle of a line.
                    fcntl.flock(output, fcntl.LOCK_EX)
                    output.write(lines)
        except (OSError, ValueError) as error:
            raise PublishError(f"cannot write to standard output: {error}") from error
        return dict.fromkeys([message.event.seq for message in messages], PUBLISHED)

    def close(self) -> None:
        """Do nothing: every batch was flushed, and the caller owns standard output."""


def from_url(url: str) -> ConsolePublisher:
    return ConsolePublisher(known_options(url, ("path",)).get("path"))
