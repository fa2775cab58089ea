"""Output of commands: results on standard output, everything else on standard error, progress only on a terminal.

Event text can contain anything: control characters are escaped, so that no terminal interprets them.
"""

import json
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from penstock.admin.text import count
from penstock.cli.terminal.exit import FAILURE

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

BROKEN_PIPE = 141
WIDE = 200
SHOWN_KINDS = 20

Update = Callable[[int], None]

# Control characters except line feed and tab, and bidirectional formatting characters.
_HIGH = r"\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069"
_CONTROL = re.compile(rf"[\x00-\x08\x0b-\x1f{_HIGH}]")
# The control characters that json.dumps doesn't escape.
_HIGH_CONTROL = re.compile(f"[{_HIGH}]")


def clean(text: str) -> str:
    """Escape control characters other than line feed and tab."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def clean_line(text: str) -> str:
    """Escape all control characters, line feeds and tabs included, so that the text stays on one line."""
    return clean(text).replace("\n", "\\n").replace("\t", "\\t")


def as_json(value: Any, *, indent: int | None = 2) -> str:
    text = json.dumps(value, indent=indent, ensure_ascii=not _speaks_unicode())
    return _HIGH_CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def write(text: str) -> None:
    """Write a line of the result."""
    with _readers_may_leave():
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def write_bytes(data: bytes) -> None:
    """Write raw bytes of the result, for a pipe or file; not for a terminal."""
    with _readers_may_leave():
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def write_json(value: Any, *, indent: int | None = 2) -> None:
    write(as_json(value, indent=indent))


def write_json_array(items: Iterable[Any]) -> None:
    """Write a JSON array, one item at a time as the iterable yields it."""
    with _readers_may_leave():
        sys.stdout.write("[")
        for number, item in enumerate(items):
            text = as_json(item).replace("\n", "\n  ")
            sys.stdout.write(f"{',' if number else ''}\n  {text}")
        sys.stdout.write("\n]\n")
        sys.stdout.flush()


def note(text: str) -> None:
    """Print a message on standard error, apart from the result."""
    print(clean(text), file=sys.stderr, flush=True)


def require_yes(question: str) -> None:
    """Ask on standard error, because standard output is for the result. Any answer but yes ends the command."""
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        note("aborted; no changes were made")
        raise typer.Exit(FAILURE)


def first_kinds(texts: Sequence[str]) -> list[str]:
    """Return the first texts as escaped lines, then the number of omitted texts."""
    shown = [f"  {clean_line(text)}" for text in texts[:SHOWN_KINDS]]
    left = len(texts) - len(shown)
    return [*shown, f"  and {count(left, 'more kind')}"] if left else shown


def table(
    rows: Iterable[Mapping[str, "str | Text"]],
    columns: Iterable[str],
    *,
    right: Collection[str] = (),
    whole: Collection[str] = (),
) -> "RenderableType":
    """Return a table. Columns in `right` are right-aligned; columns in `whole` are cut instead of folded."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    names = list(columns)
    for name in names:
        overflow: Any = "ellipsis" if name in whole else "fold"
        made.add_column(name, justify="right" if name in right else "left", no_wrap=name in whole, overflow=overflow)
    for row in rows:
        made.add_row(*(_cell(row[name]) for name in names))
    return made


def grid(rows: Iterable[Iterable["str | Text"]]) -> "RenderableType":
    """Return a grid without borders or a header, such as field names and values."""
    from rich.table import Table

    made = Table.grid(padding=(0, 2))
    for row in rows:
        made.add_row(*map(_cell, row))
    return made


def _cell(value: "str | Text") -> "str | Text":
    return clean_line(value) if isinstance(value, str) else value


def show(*parts: "RenderableType") -> None:
    """Print tables on standard output; remove trailing padding if standard output is not a terminal."""
    shown = console()
    if sys.stdout.isatty():
        shown.print(*parts, sep="\n")
        return
    with shown.capture() as captured:
        shown.print(*parts, sep="\n")
    write("\n".join(line.rstrip() for line in captured.get().splitlines()))


def console(*, stderr: bool = False) -> "Console":
    """Return a console without markup. If its stream is not a terminal, lines are 200 characters wide."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else WIDE
    return Console(stderr=stderr, markup=False, highlight=False, emoji=False, width=width)


@contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Update]:
    """Show a progress bar if standard error is a terminal; call the yielded function with the total done so far."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(show_speed=True),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)


@contextmanager
def waiting(what: str) -> Iterator[Callable[[str], None]]:
    """Show a spinner if standard error is a terminal; call the yielded function with a new status text."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    with console(stderr=True).status(what) as status:
        yield lambda text: status.update(clean_line(text))


@contextmanager
def _readers_may_leave() -> Iterator[None]:
    """Exit quietly if the reader of standard output closes the pipe, as `| head` does."""
    try:
        yield
    except BrokenPipeError:
        # Python flushes standard output at exit, and would print another BrokenPipeError.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(BROKEN_PIPE) from None


def _speaks_unicode() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
