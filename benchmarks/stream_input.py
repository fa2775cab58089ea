"""Input of the streams benchmark, and the expected totals: the same Parquet files for all contenders.

Each file belongs to one of a few partitions (the column `line`), as in a Kafka topic. A micro-batch takes one file of
each.
"""

import os
import random
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "line STRING, offset BIGINT, partition_key STRING, payload BINARY"
SEED = 20_260_101
FIRST_FILE_AT = 1_700_000_000


class Totals(NamedTuple):
    """Totals of a state. `mixed` also depends on the keys, so that a sum under a wrong key changes it."""

    keys: int
    events: int
    amount: int
    mixed: int


@dataclass(frozen=True, slots=True)
class Input:
    """The files in a folder, and the expected totals of their events."""

    folder: str
    lines: int
    batches: int
    batch: int
    expected: Totals

    @property
    def events(self) -> int:
        return self.batches * self.batch

    def open(self, spark: "SparkSession") -> "DataFrame":
        """Return a streaming DataFrame whose micro-batches take one file of each partition."""
        return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", self.lines).parquet(self.folder)


def prepare(folder: Path, *, events: int, keys: int, batch: int, lines: int) -> Input:
    """Write the files. Keys are drawn uniformly at random, with a fixed seed."""
    folder.mkdir(parents=True)
    sums: dict[str, tuple[int, int]] = {}
    batches, size = max(2, events // batch), batch // lines
    chance = random.Random(SEED)
    for number in range(batches * lines):
        start = number // lines * size
        drawn = [(f"key-{chance.randrange(keys):07}", chance.randrange(1, 100)) for _ in range(size)]
        _write(folder / f"{number:05}.parquet", str(number % lines), start, drawn, FIRST_FILE_AT + number)
        for key, amount in drawn:
            count, total = sums.get(key, (0, 0))
            sums[key] = count + 1, total + amount
    expected = add_up((key, count, total) for key, (count, total) in sums.items())
    return Input(str(folder), lines, batches, size * lines, expected)


def add_up(states: Iterable[tuple[str, int, int]]) -> Totals:
    """Return the totals of states, each a key with its count and sum."""
    keys = events = amount = mixed = 0
    for key, count, total in states:
        keys, events, amount = keys + 1, events + count, amount + total
        mixed += zlib.crc32(key.encode()) * total
    return Totals(keys, events, amount, mixed)


def read(given: Input) -> Iterator[tuple[str, bytes]]:
    """Yield the key and payload of each event."""
    import pyarrow.parquet as pq

    for path in sorted(Path(given.folder).glob("*.parquet")):
        table = pq.read_table(path, columns=["partition_key", "payload"])
        yield from zip(table["partition_key"].to_pylist(), table["payload"].to_pylist(), strict=True)


def _write(path: Path, line: str, start: int, drawn: list[tuple[str, int]], at: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns: dict[str, pa.Array[Any]] = {
        "line": pa.array([line] * len(drawn)),
        "offset": pa.array(range(start, start + len(drawn)), pa.int64()),
        "partition_key": pa.array([key for key, _ in drawn]),
        "payload": pa.array([b'{"amount": %d}' % amount for _, amount in drawn], pa.binary()),
    }
    pq.write_table(pa.table(columns), path)
    os.utime(path, (at, at))  # Spark takes files in the order of their modification times
