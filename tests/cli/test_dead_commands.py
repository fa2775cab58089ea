"""`penstock dead`: lists, shows, redrives and purges dead letters, and escapes control characters in their text."""

import json
import re
import signal
from collections.abc import Callable
from contextlib import closing
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from terminal import Start, Terminal

from penstock.model.event import Event
from penstock.model.outcome import Dead
from penstock.store.api import Store
from penstock.store.registry import open_store
from penstock.store.sql.store import SqlStore

Run = Callable[..., Any]
Settled = Callable[..., str]
MakeDeadLetters = Callable[..., list[str]]

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp.exe\r\x00 \U0001f6b0 ü"
# Control characters that a terminal would interpret, and characters that change the writing direction.
OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")


def make_dead_letters(store: Store, number: int, error: str = "no", queue: str = "outbox", **fields: Any) -> list[str]:
    fields = {"event_type": "order.placed", **fields}
    ids = store.append([Event(queue=queue, **fields) for _ in range(number)])
    claim = store.claim(queue, limit=number, claimant="tester")
    store.settle(claim.lease, {one.seq: Dead(error.replace("#", str(one.seq))) for one in claim.events})
    return [str(one) for one in ids]


@pytest.fixture
def dead_letters(store: SqlStore) -> MakeDeadLetters:
    """Return a function that creates dead letters and returns their ids as text."""
    return lambda *arguments, **fields: make_dead_letters(store, *arguments, **fields)


def counts(store: Store) -> dict[str, int]:
    stats = store.stats()
    return {name: stats.total(name) for name in ("pending", "published", "dead") if stats.total(name)}


# list


def test_list_prints_dead_letters_and_totals(penstock: Run, dead_letters: MakeDeadLetters, settled: Settled) -> None:
    (first,) = dead_letters(1, "KeyError: 'x'\n  File x, line 1", "mail", event_type="mail.wanted")
    dead_letters(12, "order # is unknown")
    settled()
    out = penstock("dead", "list").out
    lines = out.splitlines()
    assert lines[0].split() == ["died", "queue", "type", "id", "attempts", "error"]
    assert re.search(rf"Z +mail +mail.wanted +{first} +1 +KeyError: 'x'$", out, re.MULTILINE)
    assert lines.index(next(line for line in lines if first in line)) == 14  # latest death first
    assert out.endswith(
        "\n\n13 dead letters\nby queue\n         12  outbox\n          1  mail\n"
        "by error\n         12  order # is unknown\n          1  KeyError: 'x'\n"
    )


def test_list_prints_json_pages(penstock: Run, dead_letters: MakeDeadLetters) -> None:
    ids = dead_letters(5, "order # is unknown")
    first = penstock("dead", "list", "--limit", "3", "--json")
    assert first.json["totals"]["errors"] == [{"error": "order # is unknown", "count": 5}]
    assert first.err == f"more results: use --after {first.json['after']}\n"
    rest = penstock("dead", "list", "--json", "--after", first.json["after"])
    letters = first.json["dead_letters"] + rest.json["dead_letters"]
    assert [letter["event_id"] for letter in letters] == ids[::-1]
    assert (rest.json["after"], rest.err) == (None, "")


def test_list_filters_by_queue_type_error_and_time(penstock: Run, dead_letters: MakeDeadLetters) -> None:
    dead_letters(1, "connection refused", "a", event_type="x")
    dead_letters(1, "100% wrong", "b", event_type="y")

    def queues(*options: str) -> list[str]:
        return [one["queue"] for one in penstock("dead", "list", "--json", *options).json["dead_letters"]]

    assert queues() == ["b", "a"]
    assert queues("--queue", "a") == queues("--type", "x") == queues("--error", "REFUSED") == ["a"]
    assert queues("--error", "0%") == ["b"]
    assert queues("--until", "1h") == queues("--since", "2090-01-01") == []
    assert queues("--since", "1h", "--queue", "b") == ["b"]


def test_list_sums_up_rare_errors(penstock: Run, dead_letters: MakeDeadLetters) -> None:
    for letter in "abcdefghijklm":
        dead_letters(2, f"error {letter}{letter}")
    out = penstock("dead", "list").out
    assert "26 dead letters" in out
    assert out.endswith("          6  in 3 more\n")


@pytest.mark.usefixtures("store")
def test_empty_list_prints_message(penstock: Run) -> None:
    ran = penstock("dead", "list")
    assert (ran.code, ran.out, ran.err) == (0, "", "no dead letters match\n")
    assert penstock("dead").code == 2
    assert penstock("dead", "list", "--after", "x").code == 2


# show


def test_show_prints_dead_letter(penstock: Run, dead_letters: MakeDeadLetters) -> None:
    headers = {"tenant": "eu", "penstock-stream-name": "totals", "penstock-stream-key": "ada"}
    (event_id,) = dead_letters(
        1, "KeyError: 'x'\n  File x, line 1", "streams/totals", payload=b'{"a":[1]}', headers=headers
    )
    out = penstock("dead", "show", event_id).out
    for line in (
        "queue           streams/totals",
        "attempts        1",
        "own_failures    1",
        "came from name  totals",
        "came from key   ada",
        "header tenant   eu",
    ):
        assert f"\n{line}\n" in out
    assert "\nerror\nKeyError: 'x'\n  File x, line 1\n\npayload, JSON, 9 bytes\n{\n  \"a\": [\n    1\n  ]\n}\n" in out
    assert re.search(r"Z +died +1 +tester +KeyError: 'x'$", out, re.MULTILINE)
    assert "header penstock-stream" not in out
    letter = penstock("dead", "show", event_id, "--json").json
    assert letter["came_from"] == {"name": "totals", "key": "ada"}
    assert letter["headers"] == headers


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (b"", "no payload\n"),
        (b"plain text", "payload, text, 10 bytes\nplain text\n"),
        (
            b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\xff",
            "payload, binary, 17 bytes\n00000000  89 50 4e 47 0d 0a 1a 0a 00 00 00 0d 49 48 44 52  .PNG........IHDR\n"
            "00000010  ff                                               .\n",
        ),
        (b"[" * 100_000, f"payload, text, 100,000 bytes\n{'[' * 8_000}\n… and 92,000 more characters; use"),
        (b"\xff" * 2_000, "ff  ................\n… and 976 more bytes; use --payload-only for the complete payload\n"),
    ],
)
def test_show_prints_payload_by_kind(
    penstock: Run, dead_letters: MakeDeadLetters, payload: bytes, expected: str
) -> None:
    (event_id,) = dead_letters(1, payload=payload)
    assert expected in penstock("dead", "show", event_id).out


def test_show_cuts_large_payload_and_payload_only_prints_all(
    penstock: Run, process: Start, dead_letters: MakeDeadLetters
) -> None:
    payload = json.dumps(["🚰" * 10] * 20_000, ensure_ascii=False).encode() + b"\n"
    (event_id,) = dead_letters(1, payload=payload)
    shown = penstock("dead", "show", event_id).out
    assert len(shown) < 12_000
    assert f"payload, JSON, {len(payload):,} bytes" in shown
    assert process("dead", "show", event_id, "--payload-only").communicate()[0] == payload
    alone = penstock("dead", "show", event_id, "--payload-only", "--json").json
    assert alone == {"payload": payload.decode(), "payload_encoding": "utf-8"}


def test_payload_only_prints_unchanged_bytes(process: Start, dead_letters: MakeDeadLetters) -> None:
    payload = bytes(range(256))
    (event_id,) = dead_letters(1, payload=payload)
    assert process("dead", "show", event_id, "--payload-only").communicate()[0] == payload


def test_control_characters_of_dead_letter_are_escaped(
    penstock: Run, store: SqlStore, dead_letters: MakeDeadLetters
) -> None:
    text = HOSTILE.replace("\x00", "")
    fields = {"payload": HOSTILE.encode(), "headers": {"h": text, f"penstock-stream-{text}": text}}
    (event_id,) = dead_letters(1, HOSTILE, "q" + text, event_type="t" + text, partition_key=text, **fields)
    (readable,) = dead_letters(1, HOSTILE, payload=text.encode())
    for command in (
        ["dead", "list"],
        ["dead", "list", "--json"],
        ["dead", "show", event_id],
        ["dead", "show", event_id, "--json"],
        ["dead", "show", readable],
        ["dead", "redrive", "--all", "--dry-run"],
        ["dead", "redrive", "--all", "--dry-run", "--json"],
    ):
        ran = penstock(*command)
        assert ran.code == 0
        assert not OBEYED.search(ran.out + ran.err), command
        assert "\U0001f6b0 ü" in ran.out or "\\ud83d" in ran.out, command


def test_payload_only_escapes_control_characters_on_terminal(process: Start, dead_letters: MakeDeadLetters) -> None:
    (event_id,) = dead_letters(1, payload=HOSTILE.replace("\x00", "").encode())
    terminal = Terminal(process, "dead", "show", event_id, "--payload-only", output_too=True)
    terminal.await_text("ü")
    assert not OBEYED.search(terminal.shown.replace("\r\n", "\n"))
    assert "\\u001b[2J" in terminal.shown


def test_show_refuses_event_that_is_not_dead(penstock: Run, settled: Settled) -> None:
    published = settled()
    ran = penstock("dead", "show", published)
    assert (ran.code, ran.out) == (2, "")
    assert f"{published} is published, not dead; show it with: penstock show" in ran.err
    assert "does not exist; list events" in penstock("dead", "show", str(uuid4())).err
    assert "invalid event id" in penstock("dead", "show", "12").err


# redrive


def test_redrive_of_one_dead_letter_needs_no_confirmation(
    penstock: Run, store: SqlStore, dead_letters: MakeDeadLetters
) -> None:
    first, _ = dead_letters(2)
    assert penstock("dead", "redrive", first).out == "1 event redriven\n"
    assert counts(store) == {"pending": 1, "dead": 1}
    again = penstock("dead", "redrive", first)
    assert (again.code, again.out, again.err) == (
        0,
        "0 events redriven\n",
        f"{first} is pending, not dead; left unchanged\n",
    )
    left = [{"event_id": first, "state": "PENDING"}]
    assert penstock("dead", "redrive", first, "--json").json == {"redriven": 0, "left_alone": left}


def test_redrive_of_several_requires_yes_without_terminal(
    penstock: Run, store: SqlStore, dead_letters: MakeDeadLetters
) -> None:
    ids = dead_letters(3)
    for which in (["--all"], ["--error", "NO"], ids):
        ran = penstock("dead", "redrive", *which)
        assert (ran.code, ran.out) == (2, "")
        assert "redrive of 3 events requires --yes" in ran.err
    assert counts(store) == {"dead": 3}
    assert penstock("dead", "redrive", *ids, "--yes").out == "3 events redriven\n"


def test_redrive_by_filter_with_and_without_dry_run(
    penstock: Run, store: SqlStore, dead_letters: MakeDeadLetters
) -> None:
    dead_letters(3, "refused", "mail")
    dead_letters(2, "refused", "labels")
    ran = penstock("dead", "redrive", "--queue", "mail", "--dry-run")
    assert ran.out.startswith("would redrive 3 events\n          3  dead       order.placed, queue mail\nexamples:\n")
    document = penstock("dead", "redrive", "--error", "refused", "--dry-run", "--json").json
    assert (document["dry_run"], document["total"], document["left_alone"]) == (True, 5, [])
    assert counts(store) == {"dead": 5}
    assert penstock("dead", "redrive", "--queue", "mail", "--yes", "--json").json == {"redriven": 3, "left_alone": []}
    assert counts(store) == {"pending": 3, "dead": 2}


def test_redrive_of_ten_thousand_dead_letters(penstock: Run, store: SqlStore, dead_letters: MakeDeadLetters) -> None:
    dead_letters(10_000, "order # is unknown")
    assert "10,000  order # is unknown" in penstock("dead", "list", "--limit", "1").out
    assert penstock("dead", "redrive", "--all", "--yes").out == "10,000 events redriven\n"
    assert counts(store) == {"pending": 10_000}
    assert penstock("dead", "redrive", "--all", "--yes").out == "0 events redriven\n"


def test_redrive_of_several_asks_for_confirmation(
    process: Start, store: SqlStore, dead_letters: MakeDeadLetters
) -> None:
    dead_letters(2)
    terminal = Terminal(process, "dead", "redrive", "--all")
    terminal.await_text("redrive 2 events? [y/N]")
    terminal.type("y\n")
    assert terminal.end() == (0, b"2 events redriven\n")


def test_ctrl_c_during_redrive_changes_nothing(process: Start, postgres_url: str) -> None:
    with closing(open_store(postgres_url)) as store, psycopg.connect(postgres_url) as other:
        store.initialise()
        make_dead_letters(store, 3)
        other.execute("LOCK TABLE penstock_pending IN EXCLUSIVE MODE")
        terminal = Terminal(process, "--store", postgres_url, "dead", "redrive", "--all", "--yes")
        terminal.await_text("redrive: 3 events")
        terminal.process.send_signal(signal.SIGINT)
        terminal.await_text("stopped: 0 events redriven; the remaining events are unchanged")
        assert terminal.end() == (130, b"")
        other.rollback()
        assert counts(store) == {"dead": 3}


# purge


def test_purge_requires_yes_without_terminal(penstock: Run, store: SqlStore, dead_letters: MakeDeadLetters) -> None:
    first, *_ = dead_letters(3)
    assert penstock("dead", "purge", first).code == 2
    assert "would purge 3 events" in penstock("dead", "purge", "--all", "--dry-run").out
    assert counts(store) == {"dead": 3}
    assert penstock("dead", "purge", first, "--yes").out == "1 event purged\n"
    assert penstock("dead", "purge", "--all", "--yes", "--json").json == {"purged": 2, "left_alone": []}
    assert counts(store) == {}


def test_purge_removes_only_dead_letters(
    penstock: Run, store: SqlStore, dead_letters: MakeDeadLetters, settled: Settled
) -> None:
    published = settled()
    dead_letters(1)
    ran = penstock("dead", "purge", published, "--yes")
    assert (ran.out, ran.err) == ("0 events purged\n", f"{published} is published, not dead; left unchanged\n")
    assert penstock("dead", "purge", "--all", "--yes").out == "1 event purged\n"
    assert counts(store) == {"published": 1}


@pytest.mark.parametrize("verb", ["redrive", "purge"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "; pass event ids, --queue"),
        (["12"], "invalid event id '12'"),
        (["0197a3c2-7b1e-7c3d-9f00-5a2b8c4d6e1f"], "event 0197a3c2-7b1e-7c3d-9f00-5a2b8c4d6e1f does not exist"),
        (["--since", "never"], "invalid time 'never'"),
    ],
)
def test_invalid_selections_are_usage_errors(
    penstock: Run, store: SqlStore, dead_letters: MakeDeadLetters, verb: str, options: list[str], message: str
) -> None:
    dead_letters(1)
    ran = penstock("dead", verb, *options, "--yes")
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
    assert ran.err.count("\n") == 1
    assert counts(store) == {"dead": 1}
