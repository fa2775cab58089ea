"""What a command shows: results on standard output, everything else on standard error, progress only to people.

Text from events may hold anything: control characters are made visible, so that none reaches a terminal as a command.
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

# Control characters but the line feed and the tab, and those that turn the direction of writing.
_HIGH = r"\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069"
_CONTROL = re.compile(rf"[\x00-\x08\x0b-\x1f{_HIGH}]")
# Those that JSON leaves as they are.
_HIGH_CONTROL = re.compile(f"[{_HIGH}]")


def clean(text: str) -> str:
    """Text that is safe to show, line feeds and tabs left alone."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def clean_line(text: str) -> str:
    """Text that is safe to show, on one line."""
    return clean(text).replace("\n", "\\n").replace("\t", "\\t")


def as_json(value: Any, *, indent: int | None = 2) -> str:
    text = json.dumps(value, indent=indent, ensure_ascii=not _speaks_unicode())
    return _HIGH_CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def write(text: str) -> None:
    """A line of the result."""
    with _readers_may_leave():
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def write_bytes(data: bytes) -> None:
    """Bytes as they are, for whatever reads them; not for a terminal."""
    with _readers_may_leave():
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def write_json(value: Any, *, indent: int | None = 2) -> None:
    write(as_json(value, indent=indent))


def write_json_array(items: Iterable[Any]) -> None:
    """An array, written as its items come."""
    with _readers_may_leave():
        sys.stdout.write("[")
        for number, item in enumerate(items):
            text = as_json(item).replace("\n", "\n  ")
            sys.stdout.write(f"{',' if number else ''}\n  {text}")
        sys.stdout.write("\n]\n")
        sys.stdout.flush()


def note(text: str) -> None:
    """A remark that is no part of the result."""
    print(clean(text), file=sys.stderr, flush=True)


def require_yes(question: str) -> None:
    """Ask on standard error, and only there: standard output is for the result. Without a yes the command ends."""
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        note("nothing was done")
        raise typer.Exit(FAILURE)


def first_kinds(texts: Sequence[str]) -> list[str]:
    """As many texts as are worth reading, each safe to show, and how many more there are."""
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
    """A table of these columns: those in `right` hold numbers, those in `whole` what makes no sense in parts."""
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
    """Names and what belongs to them."""
    from rich.table import Table

    made = Table.grid(padding=(0, 2))
    for row in rows:
        made.add_row(*map(_cell, row))
    return made


def _cell(value: "str | Text") -> "str | Text":
    return clean_line(value) if isinstance(value, str) else value


def show(*parts: "RenderableType") -> None:
    """Tables and the like, on standard output. Where nobody looks, no line is padded to the width of its table."""
    shown = console()
    if sys.stdout.isatty():
        shown.print(*parts, sep="\n")
        return
    with shown.capture() as captured:
        shown.print(*parts, sep="\n")
    write("\n".join(line.rstrip() for line in captured.get().splitlines()))


def console(*, stderr: bool = False) -> "Console":
    """A console on which text is only text. Where nobody looks, lines are not cut to a window's width."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else WIDE
    return Console(stderr=stderr, markup=False, highlight=False, emoji=False, width=width)


@contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Update]:
    """A bar on standard error, if that is a terminal; call what it gives with the amount done so far."""
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
    """A line that moves on standard error, if that is a terminal; call what it gives with what to say next."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    with console(stderr=True).status(what) as status:
        yield lambda text: status.update(clean_line(text))


@contextmanager
def _readers_may_leave() -> Iterator[None]:
    """`| head` closes our standard output: no failure, and nothing to tell anyone."""
    try:
        yield
    except BrokenPipeError:
        # Python would still flush what is left when it ends, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(BROKEN_PIPE) from None


def _speaks_unicode() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
