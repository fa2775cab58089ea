"""`format("penstock-valkey")` on a real server, with its reader called as by Spark: entries that are delivered,
delivered again, or not delivered."""

import threading

import pytest
from valkey_env import GROUP, SECONDS

from penstock.model.errors import PipelineError, SourceUnavailable, UsageError
from penstock.pipeline.streams.sources.valkey import consumer_group as valkey_group
from penstock.publish.registry import open_publisher
from penstock.testing.events import delivery
from penstock.testing.publishers import messages
from tests.support.processes import wait_until
from tests.support.servers import ValkeyServer

# Milliseconds of idle time, short enough that entries can be taken over almost at once.
SOON = 50


def test_entries_are_read_in_order_until_acknowledged(valkey):
    added = valkey.add(5)
    query = valkey.query()
    rows = query.batch()
    assert [row["event_id"] for row in rows] == added
    assert [row["payload"] for row in rows] == [b"0", b"1", b"2", b"3", b"4"]
    assert sorted(row["seq"] for row in rows) == [row["seq"] for row in rows]
    assert {row["attempts"] for row in rows} == {0}
    assert valkey.acknowledge(added) == 5
    assert query.batch() is None
    assert valkey.pending() == 0


def test_entries_of_penstock_publisher_become_events(valkey):
    publisher = open_publisher(valkey.url)
    event = delivery(event_type="orders", headers={"trace": "1"}, partition_key="ada", ordering_key="line")
    publisher.publish(messages([event]))
    publisher.close()
    [row] = valkey.query().batch()
    assert (row["event_type"], row["payload"]) == ("orders", event.payload)
    assert (row["partition_key"], row["ordering_key"]) == ("ada", "line")
    headers = dict(row["headers"])
    assert (headers["trace"], headers["event_id"]) == ("1", str(event.event_id))


def test_new_group_starts_with_all_or_only_new_entries(valkey):
    old = valkey.add(3)
    late = valkey.query(start="new")
    assert late.batch() is None
    new = valkey.add(2)
    assert late.work() == new
    assert valkey.query(group="others").ids() == old + new


def test_query_waits_for_nonexistent_stream(valkey):
    query = valkey.query()
    assert query.batch() is None
    added = valkey.add(1)
    assert query.work() == added


def test_batch_size_is_limited(valkey):
    added = valkey.add(2_500)
    query = valkey.query(limit=1_200)
    assert [query.work(), query.work(), query.work(), query.work()] == [
        added[:1_200],
        added[1_200:2_400],
        added[2_400:],
        None,
    ]


def test_several_streams_are_read_without_starvation(valkey):
    orders, refunds = valkey.add(100), valkey.add(3, "shop/refunds")
    query = valkey.query(stream="orders,shop/refunds", limit=10)
    first_two = {event_id for _ in range(2) for event_id in query.work()}
    assert first_two > set(refunds)
    rest = []
    while (found := query.work()) is not None:
        rest += found
    assert sorted(first_two | set(rest)) == sorted(orders + refunds)
    assert (valkey.pending(), valkey.pending("shop/refunds")) == (0, 0)


def test_entries_of_several_streams_are_ordered_numerically(valkey):
    for entry_id, stream in [("9-1", "orders"), ("10-1", "refunds"), ("10-10", "orders")]:
        valkey.add_as(entry_id, stream)
    valkey.add_as("100-1", "refunds")
    query = valkey.query(stream="refunds,orders")
    assert query.work() == ["orders/9-1", "refunds/10-1", "orders/10-10", "refunds/100-1"]
    assert query.batch() is None


def test_new_entries_with_smaller_string_ids_are_read(valkey):
    valkey.add_as("9-1")
    query = valkey.query()
    assert query.work() == ["orders/9-1"]
    valkey.add_as("10-1")
    assert query.work() == ["orders/10-1"]
    assert query.batch() is None


def test_repeated_batch_has_unacknowledged_entries_and_attempts(valkey):
    added = valkey.add(4)
    query = valkey.query()
    start = query.offset
    assert query.ids() == added
    valkey.acknowledge(added[:1])
    later = valkey.add(1)
    again = query.rows(start, query.offset)
    assert [row["event_id"] for row in again] == added[1:] + later
    assert [row["attempts"] for row in again] == [1, 1, 1, 0]


def test_attempts_are_counted_beyond_one_page(valkey):
    added = valkey.add(2_300)
    query = valkey.query()
    query.batch()
    again = query.batch()
    assert [row["event_id"] for row in again] == added
    assert {row["attempts"] for row in again} == {1}


def test_unacknowledged_entries_are_in_next_batch(valkey):
    added = valkey.add(3)
    query = valkey.query()
    assert query.ids() == added
    valkey.acknowledge([added[0], added[2]])
    assert query.work() == [added[1]]
    assert query.batch() is None


def test_named_consumer_resumes_entries_without_checkpoint(valkey):
    added = valkey.add(3)
    assert valkey.query(consumer="shop").ids() == added
    later = valkey.add(1)
    assert valkey.query(consumer="shop").work() == added + later


def test_unnamed_consumer_takes_over_entries_once_idle(valkey):
    added = valkey.add(3)
    assert valkey.query().ids() == added
    stranger = valkey.query(min_idle_time_ms=600_000)
    assert stranger.batch() is None
    successor = valkey.query(min_idle_time_ms=SOON)
    assert [row["event_id"] for row in successor.awaited()] == added
    valkey.acknowledge(added)
    assert successor.batch() is None


def test_older_entries_of_dead_consumer_are_taken_over(valkey):
    valkey.group()
    old = valkey.add(3)
    assert valkey.read_as("dead", 2) == old[:2]
    query = valkey.query(min_idle_time_ms=600_000)
    assert query.work() == old[2:]
    newer = valkey.add(2)
    assert query.work() == newer
    assert query.batch() is None
    successor = valkey.query(min_idle_time_ms=SOON)
    assert [(row["event_id"], row["attempts"]) for row in successor.awaited()] == [(old[0], 1), (old[1], 1)]
    valkey.acknowledge(old)
    assert successor.batch() is None
    assert valkey.pending() == 0


def test_more_than_one_page_of_idle_entries_is_taken_over(valkey):
    valkey.group()
    added = valkey.add(2_300)
    valkey.read_as("dead", 2_300)
    assert wait_until(
        lambda: valkey.client.xpending_range("orders", GROUP, "-", "+", 3_000, idle=SOON)[2_299:], SECONDS
    )
    query = valkey.query(min_idle_time_ms=SOON, limit=2_200)
    assert query.work() == added[:2_200]
    assert query.work() == added[2_200:]
    assert query.batch() is None


def test_entries_of_removed_partitions_are_taken_over(valkey):
    valkey.add(6)
    wide = valkey.query(consumer="shop", partitions=3, limit=2)
    assert len(wide.ids()) == 6
    narrow = valkey.query(consumer="shop", partitions=1, min_idle_time_ms=SOON)
    while valkey.pending():
        valkey.acknowledge([row["event_id"] for row in narrow.awaited()])
    assert narrow.batch() is None


def test_partitions_share_entries(valkey):
    added = valkey.add(10)
    query = valkey.query(partitions=3, limit=4)
    assert sorted(query.work()) == sorted(added)
    assert query.batch() is None


def test_two_queries_of_group_read_each_entry_once(valkey):
    added = valkey.add(100)
    one, other = valkey.query(limit=7), valkey.query(limit=9)
    seen = []
    while (batches := [one.ids(), other.ids()]) != [None, None]:
        seen += [event_id for batch in batches for event_id in batch or ()]
        valkey.acknowledge([event_id for batch in batches for event_id in batch or ()])
    assert sorted(seen) == sorted(added)


def test_deleted_entries_are_acknowledged(valkey):
    added = valkey.add(5)
    query = valkey.query()
    assert query.ids() == added
    valkey.client.xtrim("orders", minid=added[3].rpartition("/")[2], approximate=False)
    valkey.client.xdel("orders", added[4].rpartition("/")[2])
    assert query.ids() == [added[3]]
    assert valkey.pending() == 1


def test_deleted_entries_of_dead_consumer_are_dropped(valkey):
    valkey.group()
    added = valkey.add(3)
    valkey.read_as("dead", 3)
    valkey.client.xdel("orders", *[event_id.rpartition("/")[2] for event_id in added[:2]])
    query = valkey.query(min_idle_time_ms=SOON)
    assert [row["event_id"] for row in query.awaited()] == added[2:]
    assert valkey.pending() == 1


def test_entries_deleted_before_reading_make_no_batch(valkey):
    """The stream's last id stays higher than the last delivered id, although no entry is left to deliver."""
    query = valkey.query()
    valkey.add(1)
    assert len(query.work()) == 1
    valkey.client.xdel("orders", *[event_id.rpartition("/")[2] for event_id in valkey.add(2)])
    assert query.batch() is None


def test_entries_pending_at_other_consumers_make_no_batch(valkey):
    valkey.group()
    valkey.add(3)
    valkey.read_as("busy", 3)
    assert valkey.query().batch() is None


def test_acknowledged_entries_can_be_deleted(valkey):
    added, refunds = valkey.add(2_500), valkey.add(2, "refunds")
    query = valkey.query(stream="orders,refunds")
    query.ids()
    assert valkey.acknowledge(added[:2_400] + refunds[:1], delete_acknowledged=True) == 2_401
    assert (valkey.client.xlen("orders"), valkey.client.xlen("refunds")) == (100, 1)
    assert valkey.acknowledge(added[:2_400]) == 0
    assert valkey.acknowledge([]) == 0


def test_destroyed_group_is_error_with_remedy(valkey):
    added = valkey.add(2)
    query = valkey.query(patient="true")
    assert query.work() == added
    valkey.client.xgroup_destroy("orders", GROUP)
    message = r"^consumer group 'totals' of stream 'orders' was deleted.*XGROUP CREATE orders totals 0 MKSTREAM"
    with pytest.raises(PipelineError, match=message):
        query.batch()
    [partition] = query.reader.partitions({}, query.offset)
    with pytest.raises(PipelineError, match=message):
        list(query.reader.read(partition))
    valkey.group(start=added[0].rpartition("/")[2])
    assert query.work() == added[1:]


def test_deleted_stream_is_error(valkey):
    valkey.add(1)
    query = valkey.query()
    query.work()
    valkey.client.delete("orders")
    with pytest.raises(PipelineError, match="was deleted"):
        query.batch()


def test_key_that_is_no_stream_is_usage_error(valkey):
    valkey.client.set("orders", "text")
    with pytest.raises(UsageError, match=r"^key 'orders' at valkey:\S+ is not a stream; use the key of a stream$"):
        valkey.query(patient="true").batch()
    with pytest.raises(UsageError, match="is not a stream"):
        valkey.acknowledge(["orders/1-1"])


@pytest.mark.parametrize("credentials", ["", ":wrong@"])
def test_rejected_credentials_are_reported_without_password(valkey, credentials):
    valkey.client.config_set("requirepass", "right")
    query = valkey.query(url=f"redis://{credentials}127.0.0.1:{valkey.server.port}", patient="true")
    with pytest.raises(UsageError, match="rejected the credentials") as refused:
        query.batch()
    assert "wrong@" not in str(refused.value)
    trusted = valkey.query(url=f"redis://:right@127.0.0.1:{valkey.server.port}")
    assert trusted.batch() is None


def test_server_without_autoclaim_is_usage_error(valkey, tmp_path):
    (tmp_path / "old.conf").write_text('rename-command XAUTOCLAIM ""\n')
    with ValkeyServer(fsync=False, settings={"include": tmp_path / "old.conf"}) as server:
        valkey.url = server.url()
        client = valkey_group.client_of(valkey.url)
        client.xadd("orders", {"payload": "x"})
        client.xgroup_create("orders", GROUP, id="0")
        client.xreadgroup(GROUP, "dead", {"orders": ">"})
        query = valkey.query(min_idle_time_ms=1)
        with pytest.raises(UsageError, match=r"is too old \(unknown command 'XAUTOCLAIM'.*Redis 6\.2 or later"):
            query.awaited()
        client.close()


def test_server_outage_ends_only_impatient_queries(valkey):
    added = valkey.add(2)
    patient, impatient = valkey.query(patient="true"), valkey.query()
    assert patient.ids() == added
    valkey.server.kill()
    assert patient.batch() is None
    with pytest.raises(SourceUnavailable, match=r"^valkey://127\.0\.0\.1:\d+/0 is unavailable: "):
        impatient.batch()
    with pytest.raises(SourceUnavailable):
        valkey.acknowledge(added)
    valkey.server.start()
    assert patient.work() == added
    assert impatient.batch() is None


def test_patient_task_waits_for_server_outage(valkey):
    added = valkey.add(3)
    query = valkey.query(patient="true")
    start = query.offset
    end = query.reader.latestOffset(start, None)
    valkey.server.kill()
    later = threading.Timer(0.7, valkey.server.start)
    later.start()
    assert [row["event_id"] for row in query.rows(start, end)] == added
    later.join()


def test_lost_server_response_loses_no_entry(valkey):
    """The server has assigned the entries to the query's own consumer, but the query did not get the response."""
    valkey.group()
    query = valkey.query()
    added = valkey.add(3)
    valkey.read_as(f"{query.offset['c']}-0", 2)
    assert query.work() == added
    assert valkey.pending() == 0


def test_dropped_non_text_headers_are_logged(valkey, caplog):
    valkey.add(2, bad=b"\xff")
    assert [dict(row["headers"]) for row in valkey.query().batch()] == [{}, {}]
    assert "headers_dropped stream=orders count=2" in caplog.text
