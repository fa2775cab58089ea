"""Patterns and kinds of error texts, by which every backend searches and counts events. Pure."""

import re

from penstock.model.text import storable

# Characters of an error that a list shows and that determine its kind; a traceback usually follows.
BEGINNING = 500
KIND_LENGTH = 160

_SPECIAL = frozenset(r"\.^$*+?()[]{}|")
# Matches text that varies between failures of one kind: ids, addresses, times, numbers.
_VARYING = re.compile(
    r"""
      (?<![a-z0-9]) [0-9a-f]{8} (?:-[0-9a-f]{4}){3} -[0-9a-f]{12} (?![a-z0-9])  # a UUID
    | 0x[0-9a-f]+                                                                # an address in memory
    | (?<![a-z0-9]) (?=[a-f]*[0-9]) (?=[0-9]*[a-f]) [0-9a-f]{8,} (?![a-z0-9])    # a hash
    | (?<![a-z0-9]) (?=[a-z]*[0-9]) [a-z0-9]{16,}                                # a long id of another kind
    | \d+ (?:[-.,:]\d+)*                                                         # a number, a time, an IP address
    """,
    re.IGNORECASE | re.VERBOSE,
)
FOLDED = "#"


def error_pattern(text: str) -> str:
    """Return a regular expression that matches `text` literally, ignoring case.

    Databases differ in which letters they fold. The pattern therefore lists both cases of every letter, which Python,
    PostgreSQL, MySQL and MariaDB interpret identically.
    """
    return "".join(map(_in_any_case, storable(text)))


def _in_any_case(character: str) -> str:
    cases = {one for one in (character, character.lower(), character.upper()) if len(one) == 1}
    if len(cases) > 1:
        return f"[{''.join(sorted(cases))}]"
    return f"\\{character}" if character in _SPECIAL else character


def error_kind(error: str | None) -> str:
    """Return the kind of an error: its first line, with numbers and ids replaced by `#`."""
    lines = (error or "")[:BEGINNING].strip().splitlines()
    kind = _VARYING.sub(FOLDED, lines[0].strip()) if lines else ""
    return kind if len(kind) <= KIND_LENGTH else kind[: KIND_LENGTH - 1] + "…"
