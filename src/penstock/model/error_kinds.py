"""The text of errors, by which events are found and counted: the same in every backend. Pure."""

import re

from penstock.model.text import storable

# As much of an error as tells its kind, and as a list needs: the rest is a traceback, or too much to read.
BEGINNING = 500
KIND_LENGTH = 160

_SPECIAL = frozenset(r"\.^$*+?()[]{}|")
# What differs from one failure to the next of the same kind: ids, addresses, times, numbers.
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
    """A regular expression that finds `text` in any case, and takes nothing in it for a pattern.

    The databases differ in which letters they know in two cases: here each letter is spelled out in both, which
    Python, PostgreSQL, MySQL and MariaDB all read alike.
    """
    return "".join(map(_in_any_case, storable(text)))


def _in_any_case(character: str) -> str:
    cases = {one for one in (character, character.lower(), character.upper()) if len(one) == 1}
    if len(cases) > 1:
        return f"[{''.join(sorted(cases))}]"
    return f"\\{character}" if character in _SPECIAL else character


def error_kind(error: str | None) -> str:
    """What errors of one kind have in common: the first line, with numbers and ids folded into a `#`."""
    lines = (error or "")[:BEGINNING].strip().splitlines()
    kind = _VARYING.sub(FOLDED, lines[0].strip()) if lines else ""
    return kind if len(kind) <= KIND_LENGTH else kind[: KIND_LENGTH - 1] + "…"
