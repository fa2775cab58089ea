"""`file:///folder`: published events are on disk, and events of a failed write are not."""

import errno
import json
import os
import resource
from contextlib import contextmanager
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.outcome import PUBLISHED, RELEASED, Retry
from penstock.publish.registry import open_publisher
from penstock.testing.events import delivery
from penstock.testing.publishers import PublisherConformance, attempt, messages, published


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "made at need" / "events"


@pytest.fixture
def open_at(folder):
    """A function that opens publishers to the folder, which are closed after the test."""
    opened = []

    def open_one(options=""):
        opened.append(open_publisher(folder.as_uri() + options))
        return opened[-1]

    yield open_one
    for publisher in opened:
        publisher.close()


def by_file(folder):
    """Return the lines of each file, oldest file first."""
    return [list(map(json.loads, path.read_text().splitlines())) for path in sorted(folder.iterdir())]


def lines(folder):
    return list(chain.from_iterable(by_file(folder)))


def written(folder):
    return [fields["seq"] for fields in lines(folder)]


def seqs_by_file(folder):
    return [[fields["seq"] for fields in file] for file in by_file(folder)]


def seqs(events):
    return [event.seq for event in events]


@contextmanager
def no_file_larger_than(size):
    """Simulate a full disk: the write that reaches the limit is cut off, the next one fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class TestFiles(PublisherConformance):
    @pytest.fixture(params=["", "?fsync=false", "?rotate_bytes=2000"])
    def publisher(self, open_at, request):
        return open_at(request.param)

    @pytest.fixture
    def read_back(self, folder, as_received):
        return lambda topic: [as_received(fields) for fields in lines(folder) if fields["topic"] == topic]


def test_folder_is_created_at_first_event(open_at, folder):
    open_at().publish([])
    assert not folder.exists()


def test_folder_name_may_have_spaces_and_percent_signs(tmp_path):
    folder = tmp_path / "50% off, ünd"
    publisher = open_publisher(folder.as_uri())
    publisher.publish(messages([delivery()]))
    publisher.close()
    assert len(lines(folder)) == 1


def test_writers_have_separate_files(open_at, folder):
    writers = [open_at(), open_at()]
    batches = [[delivery(), delivery()] for _ in range(4)]
    for number, batch in enumerate(batches):
        writers[number % 2].publish(messages(batch))
    assert seqs_by_file(folder) == [seqs(batches[0] + batches[2]), seqs(batches[1] + batches[3])]


def test_forked_process_writes_to_separate_file(open_at, folder):
    publisher, before, in_child, after = open_at(), delivery(), delivery(), delivery()
    publisher.publish(messages([before]))
    child = os.fork()
    if child == 0:
        publisher.publish(messages([in_child]))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    publisher.publish(messages([after]))
    assert seqs_by_file(folder) == [[before.seq, after.seq], [in_child.seq]]


def test_files_are_rotated_by_size(open_at, folder):
    publisher = open_at("?rotate_bytes=1500")
    events = [delivery(payload=b"x" * 1_000) for _ in range(5)]
    for event in events:
        publisher.publish(messages([event]))
    assert seqs_by_file(folder) == [seqs(events[:2]), seqs(events[2:4]), seqs(events[4:])]


@pytest.mark.parametrize(("options", "synced"), [("", ["folder", "file", "file"]), ("?fsync=false", [])])
def test_batch_is_synced_before_its_outcomes(open_at, folder, monkeypatch, options, synced):
    calls, fsync = [], os.fsync

    def watched(descriptor):
        calls.append("folder" if os.path.samestat(os.fstat(descriptor), os.stat(folder)) else "file")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    publisher = open_at(options)
    publisher.publish(messages([delivery()]))
    publisher.publish(messages([delivery()]))
    assert calls == synced


def test_full_disk_stores_no_part_of_batch(open_at, folder):
    publisher = open_at()
    first, second = [delivery() for _ in range(3)], [delivery() for _ in range(10)]
    publisher.publish(messages(first))
    size = sum(path.stat().st_size for path in folder.iterdir())
    with no_file_larger_than(size + 700):
        outcomes = attempt(publisher, second)
    assert all(isinstance(outcome, Retry) and "File too large" in outcome.error for outcome in outcomes.values())
    assert outcomes.keys() == set(seqs(second))
    assert written(folder) == seqs(first)
    assert attempt(publisher, second) == published(second)
    assert written(folder) == seqs(first + second)


def test_disk_full_at_start_leaves_no_empty_files(open_at, folder):
    publisher = open_at()
    with no_file_larger_than(100):
        for _ in range(3):
            attempt(publisher, [delivery()])
    assert list(folder.iterdir()) == []


def test_file_is_replaced_after_failed_sync(open_at, folder, monkeypatch):
    publisher, first, second = open_at(), delivery(), delivery()
    publisher.publish(messages([first]))
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", failing_fsync)
        outcomes = publisher.publish(messages([second]))
    assert isinstance(outcomes[second.seq], Retry)
    assert written(folder) == [first.seq]
    assert publisher.publish(messages([second])) == {second.seq: PUBLISHED}
    assert len(list(folder.iterdir())) == 2
    assert written(folder) == [first.seq, second.seq]


def failing_fsync(descriptor):
    raise OSError(errno.EIO, "Input/output error")


def test_uncreatable_folder_is_retry(tmp_path):
    (tmp_path / "events").write_text("in the way")
    publisher = open_publisher((tmp_path / "events").as_uri())
    event = delivery()
    outcome = attempt(publisher, [event])[event.seq]
    assert isinstance(outcome, Retry)
    assert "exists" in outcome.error
    (tmp_path / "events").unlink()
    assert attempt(publisher, [event]) == {event.seq: PUBLISHED}
    publisher.close()


def test_unwritten_batch_retries_only_first_event_of_each_key(open_at):
    loose, head, behind = delivery(), delivery(ordering_key="a"), delivery(ordering_key="a")
    with no_file_larger_than(100):
        outcomes = open_at().publish(messages([loose, head, behind]))
    assert isinstance(outcomes[loose.seq], Retry)
    assert isinstance(outcomes[head.seq], Retry)
    assert outcomes[behind.seq] == RELEASED


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(0, 8_000), st.integers(500, 6_000))
def test_files_contain_exactly_published_events(tmp_path_factory, batches, limit, rotate_bytes):
    folder = tmp_path_factory.mktemp("events")
    publisher = open_publisher(f"{folder.as_uri()}?fsync=false&rotate_bytes={rotate_bytes}")
    published_seqs = []
    with no_file_larger_than(limit):
        for size in batches:
            outcomes = publisher.publish(messages([delivery() for _ in range(size)]))
            published_seqs += [seq for seq, outcome in outcomes.items() if outcome == PUBLISHED]
    publisher.close()
    assert written(folder) == published_seqs
