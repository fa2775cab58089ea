"""Numbers and times as people say them. Pure."""

_UNITS = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"))


def age(seconds: float) -> str:
    """A length of time in its largest fitting unit: 0.4 s, 12 s, 3 min, 2 h, 5 d."""
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{int(seconds)} s"


def count(number: int, noun: str) -> str:
    """A number and its noun: 1 event, 1,204 events."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def first_line(text: str, limit: int) -> str:
    """The beginning of a text that may be long or have many lines."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= limit else line[: limit - 1] + "…"
