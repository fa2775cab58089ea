"""Readable numbers and durations. Pure."""

_UNITS = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"))


def age(seconds: float) -> str:
    """Return a duration in the largest unit that fits: 0.4 s, 12 s, 3 min, 2 h, 5 d."""
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{int(seconds)} s"


def count(number: int, noun: str) -> str:
    """Return a number and its noun: 1 event, 1,204 events."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def first_line(text: str, limit: int) -> str:
    """Return the first non-empty line of a text, cut to `limit` characters."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= limit else line[: limit - 1] + "…"
