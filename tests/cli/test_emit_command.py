"""`penstock emit`: one event, or many, all or none."""

import base64
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from penstock.model.records import Record
from penstock.model.selection import Selection
from penstock.store.sql.store import SqlStore

Run = Callable[..., Any]
Start = Callable[..., "subprocess.Popen[bytes]"]


def records(store: SqlStore) -> list[Record]:
    """Return all events of the store in the order of their emission."""
    return list(store.find(Selection(), limit=10_000).records)[::-1]


def lines(*events: Any) -> bytes:
    return "".join(json.dumps(event) + "\n" for event in events).encode()


def test_emit_prints_event_id(penstock: Run, store: SqlStore) -> None:
    ran = penstock("emit", "order.placed", '{"id": 1}')
    (record,) = records(store)
    assert ran.code == 0
    assert UUID(ran.out.strip()) == record.event_id
    assert record.payload == b'{"id": 1}'


def test_emit_prints_json(penstock: Run, store: SqlStore) -> None:
    ran = penstock("emit", "t", "--json")
    assert ran.json == {"event_id": str(records(store)[0].event_id), "duplicate": False}


@pytest.mark.parametrize(
    ("payload", "content_type"),
    [
        ('{"id": 1}', "application/json"),
        ("[1, 2]", "application/json"),
        ("hello", "text/plain; charset=utf-8"),
        ("12", "text/plain; charset=utf-8"),
    ],
)
def test_content_type_is_derived_from_payload(penstock: Run, store: SqlStore, payload: str, content_type: str) -> None:
    penstock("emit", "t", payload)
    assert records(store)[0].headers == {"content-type": content_type}


def test_payload_from_standard_input_is_unchanged(penstock: Run, store: SqlStore) -> None:
    assert penstock("emit", "t", "-", stdin=b"\xff\x00\n").code == 0
    (record,) = records(store)
    assert (record.payload, record.headers) == (b"\xff\x00\n", {})


def test_every_option_sets_field_of_event(penstock: Run, store: SqlStore) -> None:
    options = "--queue q --header a=1 --header b=x=y --partition-key p --ordering-key o --priority 7 --max-attempts 3"
    assert penstock("emit", "t", "x", *options.split(), "--delay", "10m").code == 0
    (record,) = records(store)
    assert (record.queue, record.partition_key, record.ordering_key) == ("q", "p", "o")
    assert (record.priority, record.max_attempts) == (7, 3)
    assert record.headers == {"a": "1", "b": "x=y", "content-type": "text/plain; charset=utf-8"}
    assert 590 < (record.available_at - record.created_at).total_seconds() < 610


def test_given_content_type_is_kept(penstock: Run, store: SqlStore) -> None:
    penstock("emit", "t", "x", "--header", "Content-Type=text/csv")
    assert records(store)[0].headers == {"Content-Type": "text/csv"}


def test_available_at_option_sets_time(penstock: Run, store: SqlStore) -> None:
    penstock("emit", "t", "--available-at", "2090-01-31T12:00Z")
    assert records(store)[0].available_at.isoformat() == "2090-01-31T12:00:00+00:00"


def test_duplicate_is_not_stored_and_prints_first_id(penstock: Run, store: SqlStore) -> None:
    first = penstock("emit", "t", "--dedupe-key", "k")
    second = penstock("emit", "t", "--dedupe-key", "k")
    assert first.out == second.out
    assert "duplicate: " in second.err
    assert penstock("emit", "t", "--dedupe-key", "k", "--json").json["duplicate"] is True
    assert len(records(store)) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "missing TYPE"),
        (["t", "--priority", "500"], "priority must be between -100 and 100, got 500"),
        (["t", "--max-attempts", "-1"], "max_attempts must be between 1 and 2147483647, got -1"),
        (["t", "--delay", "soon"], "invalid duration 'soon'"),
        (["t", "--delay", "1", "--available-at", "2090-01-01"], "mutually exclusive"),
        (["t", "--available-at", "then"], "invalid time 'then'"),
        (["t", "--header", "x"], "NAME=VALUE"),
        (["t" * 300], "1 to 255 characters"),
        (["t", "--from", "x.jsonl"], "are mutually exclusive"),
        (["--from", "x.jsonl", "--queue", "q"], "are mutually exclusive"),
        (["--from", "missing.jsonl"], "cannot open missing.jsonl"),
        (["--from", "."], "cannot open ."),
    ],
)
def test_invalid_arguments_are_usage_errors(penstock: Run, store: SqlStore, arguments: list[str], message: str) -> None:
    ran = penstock("emit", *arguments)
    assert ran.code == 2
    assert ran.out == ""
    assert message in ran.err
    assert ran.err.count("\n") == 1
    assert records(store) == []


# Many events


def test_json_lines_become_events(penstock: Run, store: SqlStore) -> None:
    given = lines(
        {"event_type": "a", "payload": {"ü": [1, 2.5, None]}},
        {"type": "b", "payload": "text"},
        {"type": "c", "payload_base64": base64.b64encode(b"\xff").decode(), "queue": "q", "headers": {"k": "v"}},
        {"type": "d", "priority": 3, "partition_key": "p", "ordering_key": "o", "max_attempts": 2, "delay": "1h"},
        {"type": "e", "available_at": "2090-01-01T00:00Z", "event_id": "0197a3c2-7b1e-7c3d-9f00-5a2b8c4d6e1f"},
        {"type": "f", "payload": None, "partition_key": None},
    )
    assert penstock("emit", "--from", "-", "--json", stdin=given).json == {"emitted": 6, "duplicates": 0}
    found = records(store)
    assert [record.event_type for record in found] == list("abcdef")
    assert found[0].payload == '{"ü":[1,2.5,null]}'.encode()
    assert found[0].headers == {"content-type": "application/json"}
    assert (found[1].payload, found[1].headers) == (b"text", {"content-type": "text/plain; charset=utf-8"})
    assert (found[2].payload, found[2].queue, found[2].headers) == (b"\xff", "q", {"k": "v"})
    assert (found[3].priority, found[3].partition_key, found[3].ordering_key) == (3, "p", "o")
    assert str(found[4].event_id) == "0197a3c2-7b1e-7c3d-9f00-5a2b8c4d6e1f"
    assert found[5].payload == b"null"


def test_byte_order_mark_and_empty_lines_are_ignored(penstock: Run, store: SqlStore, tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_bytes(b'\xef\xbb\xbf{"type": "a"}\r\n\r\n{"type": "b"}')
    ran = penstock("emit", "--from", "events.jsonl")
    assert (ran.code, ran.out) == (0, "2 emitted\n")
    assert [record.event_type for record in records(store)] == ["a", "b"]


@pytest.mark.usefixtures("store")
def test_empty_input_emits_no_events(penstock: Run) -> None:
    assert penstock("emit", "--from", "-", "--json").json == {"emitted": 0, "duplicates": 0}


def test_duplicates_are_counted(penstock: Run, store: SqlStore) -> None:
    given = lines({"type": "a", "dedupe_key": "k"}, {"type": "a", "dedupe_key": "k"}, {"type": "b"})
    ran = penstock("emit", "--from", "-", stdin=given)
    assert ran.out == "2 emitted; 1 dropped as duplicates\n"
    assert len(records(store)) == 2


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{nope}", "invalid JSON: Expecting"),
        ('"text"', "expected a JSON object"),
        ('{"payload": 1}', "missing event_type"),
        ('{"type": "t", "colour": 1}', "unknown field 'colour'"),
        ('{"type": "t", "event_type": "t"}', "event_type and type are mutually exclusive"),
        ('{"type": "t", "payload": 1, "payload_base64": ""}', "mutually exclusive"),
        ('{"type": "t", "payload_base64": "?"}', "invalid payload_base64"),
        ('{"type": "t", "payload": NaN}', "NaN is not a JSON value"),
        ('{"type": "t", "payload": 1e999}', "cannot encode the payload as JSON"),
        ('{"type": "t", "payload": "\\ud800"}', "surrogate"),
        ('{"type": 5}', "type must be a string, got a number"),
        ('{"type": ""}', "1 to 255 characters"),
        ('{"type": "t", "priority": "high"}', "priority must be an integer, got a string"),
        ('{"type": "t", "priority": true}', "priority must be an integer, got a boolean"),
        ('{"type": "t", "priority": 101}', "between -100 and 100"),
        ('{"type": "t", "max_attempts": 0}', "max_attempts must be between 1"),
        ('{"type": "t", "delay": -1}', "delay must be between 0 and 100 years"),
        ('{"type": "t", "delay_seconds": "x"}', "must be a number of seconds"),
        ('{"type": "t", "available_at": "soon"}', "invalid time 'soon'"),
        ('{"type": "t", "headers": {"a": 1}}', "headers must map strings to strings"),
        ('{"type": "t", "headers": []}', "headers must be an object of strings"),
        ('{"type": "t", "event_id": "7"}', "invalid event_id '7'"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_invalid_line_rejects_all_events(penstock: Run, store: SqlStore, line: str, message: str) -> None:
    good = lines(*[{"type": "t"}] * 1_500)
    ran = penstock("emit", "--from", "-", stdin=good + line.encode() + b"\n" + good)
    assert (ran.code, ran.out) == (2, "")
    assert "line 1501: " in ran.err
    assert message in ran.err
    assert "no event was emitted" in ran.err
    assert ran.err.count("\n") == 1
    assert records(store) == []


def test_line_with_invalid_utf8_rejects_all_events(penstock: Run, store: SqlStore) -> None:
    ran = penstock("emit", "--from", "-", stdin=b'{"type": "t"}\n{"type": "\xff"}\n')
    assert "line 2: invalid UTF-8" in ran.err
    assert records(store) == []


def test_existing_event_id_error_names_lines(penstock: Run, store: SqlStore) -> None:
    again = {"type": "t", "event_id": "0197a3c2-7b1e-7c3d-9f00-5a2b8c4d6e1f"}
    assert penstock("emit", "--from", "-", stdin=lines(again)).code == 0
    ran = penstock("emit", "--from", "-", stdin=lines({"type": "t"}, again))
    assert ran.code == 2
    assert "lines 1 to 2: an event with this event_id already exists" in ran.err
    assert len(records(store)) == 1


def test_lines_are_read_from_pipe(process: Start, store: SqlStore) -> None:
    emitting = process("emit", "--from", "-")
    out, err = emitting.communicate(lines(*[{"type": "t"}] * 2_500), timeout=60)
    assert (emitting.returncode, out, err) == (0, b"2,500 emitted\n", b"")
    assert len(records(store)) == 2_500


def test_binary_payload_is_accepted_and_binary_type_refused(process: Start, store: SqlStore) -> None:
    emitting = process("emit", "t", os.fsdecode(b"\xff"))
    emitting.communicate(timeout=60)
    assert records(store)[0].payload == b"\xff"
    emitting = process("emit", os.fsdecode(b"\xff"))
    _, err = emitting.communicate(timeout=60)
    assert emitting.returncode == 2
    assert b"event_type is not valid Unicode" in err


def test_lines_are_emitted_all_or_none_on_postgresql(penstock: Run, postgres_url: str) -> None:
    store = ("--store", postgres_url)
    assert penstock("init", *store).code == 0
    good = lines(*[{"type": "t"}] * 1_500)
    assert "line 1501" in penstock("emit", "--from", "-", *store, stdin=good + b"{}\n").err
    assert penstock("status", "--json", *store).json["pending"] == 0
    assert penstock("emit", "--from", "-", "--json", *store, stdin=good).json["emitted"] == 1_500
    assert penstock("status", "--json", *store).json["pending"] == 1_500
