"""Conversion of stream entries to rows, without a server and without Spark."""

import json
from datetime import UTC, datetime

import pytest
from valkey.exceptions import ConnectionError as LostConnection
from valkey.exceptions import NoPermissionError, ReadOnlyError, ResponseError

from penstock.model.errors import PipelineError, SourceUnavailable, UsageError
from penstock.pipeline.streams.sources.valkey.consumer_group import plain_error
from penstock.pipeline.streams.sources.valkey.datasource import StreamOptions
from penstock.pipeline.streams.sources.valkey.entries import EntryId, Rows, StreamEntry, entry_of, in_order, pages

URL = "valkey://:secret@127.0.0.1/0"
NEEDED = {"url": URL, "stream": "orders", "group": "totals"}


def entry(entry_id="5-1", stream="orders", attempts=0, **fields):
    named = {name.encode(): value if isinstance(value, bytes) else value.encode() for name, value in fields.items()}
    return StreamEntry(stream, EntryId.parse(entry_id), named or {b"payload": b"x"}, attempts)


def row(**fields):
    return Rows("payload").row(entry(**fields))


def test_ids_compare_as_numbers():
    assert EntryId.parse(b"9-1") < EntryId.parse(b"10-1") < EntryId.parse("10-2") < EntryId.parse("10-10")
    assert EntryId.parse("9-1").seq() < EntryId.parse("10-1").seq() < EntryId.parse("10-10").seq()


@pytest.mark.parametrize("entry_id", [f"{2**64 - 1}-{2**64 - 1}", f"{2**43}-0"])
def test_seq_of_oversized_id_is_maximum(entry_id):
    assert EntryId.parse(entry_id).seq() == 2**63 - 1
    assert EntryId.parse(entry_id).time().year in (2248, 9999)


def test_seq_overflow_stays_within_millisecond():
    assert EntryId(5, 2**20 + 7).seq() == EntryId(5, 2**20 - 1).seq() < EntryId(6, 0).seq()


def test_entry_time_is_read_from_id():
    assert EntryId.parse("1767225600123-0").time() == datetime(2026, 1, 1, 0, 0, 0, 123000, tzinfo=UTC)


@pytest.mark.parametrize("stream", ["orders", "shop/orders", "/", "ä b"])
def test_event_id_contains_stream_and_entry_id(stream):
    assert entry_of(entry("12-3", stream).event_id) == (stream, "12-3")


@pytest.mark.parametrize("event_id", ["12-3", "orders", "orders/12", "orders/a-b", "orders/12-3/"])
def test_event_id_of_another_source_is_refused(event_id):
    with pytest.raises(UsageError, match=r"^invalid event id '.*'; expected an id such as orders/1767225600000-0$"):
        entry_of(event_id)


def test_entry_of_penstock_publisher_is_decoded_unchanged():
    found = row(
        event_id="0199", event_type="order.placed", queue="outbox", payload=b"\xff\x00", headers='{"trace":"ä"}',
        created_at="2026-01-01T00:00:00+00:00", partition_key="p", ordering_key="o",
    )  # fmt: skip
    assert found["payload"] == b"\xff\x00"
    assert (found["event_type"], found["partition_key"], found["ordering_key"]) == ("order.placed", "p", "o")
    assert dict(found["headers"]) == {
        "event_id": "0199",
        "queue": "outbox",
        "created_at": "2026-01-01T00:00:00+00:00",
        "trace": "ä",
    }


@pytest.mark.parametrize("forged", [{"penstock-stream-key": "another's"}, {"headers": '{"penstock-stream": "total"}'}])
def test_headers_of_forwarded_events_are_left_out(forged):
    assert row(payload="p", colour="red", **forged)["headers"] == [("colour", "red")]


def test_foreign_entry_has_stream_as_type_and_fields_as_headers():
    found = row(payload="{}", tenant="ada")
    assert (found["event_type"], found["partition_key"], found["ordering_key"]) == ("orders", None, None)
    assert dict(found["headers"]) == {"tenant": "ada"}


def test_entry_without_payload_field_becomes_json_payload():
    found = row(amount="12", who="Žofie", broken=b"\xff")
    assert json.loads(found["payload"]) == {"amount": "12", "who": "Žofie", "broken": "\\xff"}
    assert found["headers"] == []


def test_payload_field_can_be_configured():
    found = Rows("body").row(entry(body="b", payload="p"))
    assert (found["payload"], found["headers"]) == (b"b", [("payload", "p")])


@pytest.mark.parametrize("text", ["plain", "[1]", '{"a":1}', '{"a":"\\ud800"}', "[" * 100_000])
def test_invalid_headers_field_becomes_header(text):
    assert row(payload="p", headers=text)["headers"] == [("headers", text)]


def test_non_text_headers_are_dropped_and_counted():
    rows = Rows("payload")
    found = rows.row(entry(payload=b"\xff", bad=b"\xff", good="yes"))
    assert (found["payload"], found["headers"], rows.dropped_headers) == (b"\xff", [("good", "yes")], 1)


def test_different_non_text_keys_stay_different():
    assert (
        row(payload="", partition_key=b"\xff")["partition_key"]
        != row(payload="", partition_key=b"\xfe")["partition_key"]
    )


def test_entries_are_unique_and_oldest_first():
    found = in_order([entry("10-1"), entry("9-1"), entry("10-1"), entry("9-1", "other")])
    assert [one.event_id for one in found] == ["orders/9-1", "other/9-1", "orders/10-1"]


def test_pages_are_bounded_by_rows_and_bytes():
    entries = [entry(f"{number}-0", payload="x" * 10) for number in range(7)]
    assert [len(page) for page in pages(entries, rows=3)] == [3, 3, 1]
    assert [len(page) for page in pages(entries, size=25)] == [2, 2, 2, 1]
    assert [len(page) for page in pages(entries, size=1)] == [1] * 7
    assert list(pages([])) == []


def test_options_accept_camel_case_and_upper_case():
    options = StreamOptions.parse({**NEEDED, "minIdleTimeMs": "5", "LIMIT": "7", "payload_field": "body"})
    assert (options.min_idle_time_ms, options.limit, options.payload_field, options.partitions) == (5, 7, "body", 1)
    assert not options.patient


def test_streams_are_separated_by_commas():
    options = StreamOptions.parse({**NEEDED, "stream": "a, b,a,"})
    assert [group.stream for group in options.groups()] == ["a", "b"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"group": ""}, "missing option 'group' for format penstock-valkey"),
        ({"stream": " , "}, "missing option 'stream' for format penstock-valkey"),
        ({"topic": "x"}, "unknown option 'topic' for format penstock-valkey; supported: url, stream, group, consumer,"),
        ({"limit": "0"}, "limit must be a whole number of at least 1, got '0'"),
        ({"min_idle_time_ms": "soon"}, "min_idle_time_ms must be a whole number of at least 1, got 'soon'"),
        ({"patient": "perhaps"}, "patient must be true or false, got 'perhaps'"),
        ({"start": "end"}, "unknown value 'end' for start; expected one of beginning, new"),
        (
            {"url": "kafka://here"},
            "unknown scheme 'kafka' for format penstock-valkey; supported: redis, rediss, valkey, valkeys",
        ),
        ({"url": "valkey://here/x"}, "expected a database number as the path"),
        ({"url": "valkey://here?maxlen=5"}, "unknown option 'maxlen' for valkey:; supported: ssl_ca_certs"),
    ],
)
def test_invalid_options_are_usage_errors(given, message):
    with pytest.raises(UsageError) as refused:
        StreamOptions.parse({**NEEDED, **given})
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (ResponseError("unknown command 'XAUTOCLAIM', with args"), UsageError, "is too old (unknown command"),
        (
            ResponseError("Invalid stream ID specified as stream command argument"),
            UsageError,
            "use Valkey, or Redis 6.2 or later",
        ),
        (
            NoPermissionError("this user has no permissions"),
            UsageError,
            "rejected the credentials, or this user has no",
        ),
        (ReadOnlyError("You can't write against a read only replica."), SourceUnavailable, "is unavailable: You can't"),
        (LostConnection("Connection refused"), SourceUnavailable, "is unavailable: Connection refused"),
        (ConnectionResetError("reset"), SourceUnavailable, "is unavailable: reset"),
        (ResponseError("OOM"), PipelineError, "rejected a command on stream 'orders': OOM"),
    ],
)
def test_server_errors_are_classified_without_password(error, kind, message):
    plain = plain_error(error, URL, "orders", "totals")
    assert type(plain) is kind
    assert message in str(plain)
    assert "secret" not in str(plain)
