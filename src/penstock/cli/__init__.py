"""The command line: thin commands over the admin service and the relay, with one-line errors."""

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command with `arguments` (default: the process's arguments) and return the exit code."""
    try:
        from penstock.cli.app import run

        return run(arguments)
    except KeyboardInterrupt:
        return 130
