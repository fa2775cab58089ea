"""A Valkey server for the tests of `format("penstock-valkey")`, with stream readers that are called as by Spark."""

from typing import Any

from valkey import Valkey

from penstock.pipeline.streams.sources.valkey.consumer_group import acknowledge
from penstock.pipeline.streams.sources.valkey.datasource import EntryReader, StreamOptions
from tests.support.processes import wait_until
from tests.support.servers import ValkeyServer

GROUP = "totals"
SECONDS = 120.0

Offset = dict[str, Any]
Row = dict[str, Any]


class ValkeyGround:
    """An empty Valkey server and a client."""

    def __init__(self, server: ValkeyServer, client: Valkey) -> None:
        self.server = server
        self.url = server.url()
        self.client: Any = client  # the results of its methods have no useful types

    def add(self, count: int, stream: str = "orders", **fields: Any) -> list[str]:
        """Append entries; return the ids of their events."""
        pipeline = self.client.pipeline(transaction=False)
        for number in range(count):
            pipeline.xadd(stream, {"payload": f"{number}", **fields})
        return [f"{stream}/{entry_id.decode()}" for entry_id in pipeline.execute()]

    def add_as(self, entry_id: str, stream: str = "orders") -> str:
        """Append an entry with the given id; return the id of its event."""
        self.client.xadd(stream, {"payload": entry_id}, id=entry_id)
        return f"{stream}/{entry_id}"

    def group(self, stream: str = "orders", start: str = "0") -> None:
        self.client.xgroup_create(stream, GROUP, id=start, mkstream=True)

    def read_as(self, consumer: str, count: int, stream: str = "orders") -> list[str]:
        """Read new entries as another consumer, which acknowledges nothing."""
        [(_, entries)] = self.client.xreadgroup(GROUP, consumer, {stream: ">"}, count=count)
        return [f"{stream}/{entry_id.decode()}" for entry_id, _ in entries]

    def pending(self, stream: str = "orders") -> int:
        return int(self.client.xpending(stream, GROUP)["pending"])

    def acknowledge(self, event_ids: list[str], **options: Any) -> int:
        return acknowledge(self.url, GROUP, event_ids, **options)

    def query(self, **options: object) -> "Query":
        return Query(self, **options)


class Query:
    """A stream reader, called as by Spark: a batch begins after the previous batch has ended."""

    def __init__(self, ground: ValkeyGround, **options: object) -> None:
        given = {"url": ground.url, "stream": "orders", "group": GROUP, **options}
        self._ground = ground
        self.reader = EntryReader(StreamOptions.parse({name: str(value) for name, value in given.items()}))
        self.offset = self.reader.initialOffset()

    def batch(self) -> list[Row] | None:
        """Return the rows of the next batch, or None if no entries are available."""
        end = self.reader.latestOffset(self.offset, None)
        if end == self.offset:
            assert list(self.reader.partitions(self.offset, end)) == []
            return None
        start, self.offset = self.offset, end
        return self.rows(start, end)

    def rows(self, start: Offset, end: Offset) -> list[Row]:
        """Read a batch and return its rows. May be called repeatedly for the same batch."""
        batches = [batch for one in self.reader.partitions(start, end) for batch in self.reader.read(one)]
        return [row for batch in batches for row in batch.to_pylist()]

    def awaited(self) -> list[Row]:
        """Wait until entries are available, for example idle for long enough; return the rows of the next batch."""
        assert wait_until(lambda: self.reader.latestOffset(self.offset, None) != self.offset, SECONDS)
        rows = self.batch()
        assert rows is not None
        return rows

    def ids(self) -> list[str] | None:
        rows = self.batch()
        return None if rows is None else [row["event_id"] for row in rows]

    def work(self) -> list[str] | None:
        """Read and acknowledge the next batch; return the ids of its events."""
        found = self.ids()
        self._ground.acknowledge(found or [])
        return found
