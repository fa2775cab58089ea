"""Grouping of error texts by kind, and patterns that match a text in any case."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model import dead_letters as deaths
from penstock.model.dead_letters import OTHER_ERRORS, DeathCount, count_by_kind
from penstock.model.error_kinds import BEGINNING, KIND_LENGTH, error_kind, error_pattern
from penstock.model.text import storable

ALIKE = {
    "order # is unknown": ["order 1 is unknown", "order 20456 is unknown", "order 3.5 is unknown"],
    "no row for #": [
        "no row for 0197a3c2-7b1e-7c3d-9f00-5a2b8c4d6e1f",
        "no row for 0197A3C2-7B1E-7C3D-9F00-5A2B8C4D6E1F",
        "no row for 01j9z3k4m5n6p7q8r9s0t1v2w3",
        "no row for 9f86d081884c7d65",
        "no row for 12",
    ],
    "<Socket at #> closed": ["<Socket at 0x7f5020994e10> closed", "<Socket at 0xFF> closed"],
    "#T#Z: no answer from #": [
        "2026-01-31T12:00:00.125Z: no answer from 10.0.0.5:8080",
        "2025-12-01T23:59:59Z: no answer from 192.168.1.1",
    ],
    "worker#: died in 'shop-#'": ["worker3: died in 'shop-77'", "worker12: died in 'shop-1'"],
}


@pytest.mark.parametrize("kind", ALIKE)
def test_errors_differing_in_numbers_and_ids_share_kind(kind: str) -> None:
    assert {error_kind(error) for error in ALIKE[kind]} == {kind}


@pytest.mark.parametrize(
    "error",
    ["the cabbage is defaced", "decade", "UnicodeDecodeError: utf-x", "größe fehlt 🚰", ""],
)
def test_hexadecimal_looking_words_stay_in_kind(error: str) -> None:
    assert error_kind(error) == error


def test_first_nonblank_line_is_error_kind() -> None:
    assert error_kind("\n  \n  KeyError: 'x'  \n  File 1, line 2") == "KeyError: 'x'"
    assert error_kind("KeyError: 'x'\r\nTraceback") == "KeyError: 'x'"
    assert error_kind(None) == ""


def test_long_errors_are_truncated_to_one_kind() -> None:
    long = [error_kind(f"id {number}: " + "x" * 10_000) for number in (1, 10**40)]
    assert long[0] == long[1]
    assert len(long[0]) == KIND_LENGTH
    assert error_kind("0" * 10 * BEGINNING) == "#"


def test_kind_of_hostile_error_text_is_bounded() -> None:
    for piece in ("0-", "a1" * 8 + "-", "0x", "deadbeef" * 9, "\x1b[31m", "1.", " "):
        assert len(error_kind(piece * 200_000)) <= KIND_LENGTH


def test_kinds_beyond_maximum_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deaths, "MOST_KINDS", 2)
    rows = [("q", "a", 1), ("q", "b", 2), ("q", "c", 4), ("q", "d", 8), ("q", "a", 16)]
    assert count_by_kind(rows) == [DeathCount("q", "a", 17), DeathCount("q", OTHER_ERRORS, 12), DeathCount("q", "b", 2)]


@given(st.text(), st.text(min_size=1), st.text())
def test_error_pattern_matches_text_at_any_position(before: str, text: str, after: str) -> None:
    assert re.search(error_pattern(text), storable(before + text + after))


@given(st.text(), st.text(alphabet=".^$*+?()[]{}|\\%_aA1", min_size=1))
def test_error_pattern_matches_text_literally(error: str, text: str) -> None:
    found = re.search(error_pattern(text), error) is not None
    assert found == (text.lower() in error.lower())
