"""The command line: thin commands over the admin service and the relay, and mistakes told in one line."""

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command (the process's own arguments unless others are given); returns the exit code."""
    try:
        from penstock.cli.app import run

        return run(arguments)
    except KeyboardInterrupt:
        return 130
