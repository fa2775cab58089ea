"""State of a stream as a DataFrame, also while the stream runs: `read` and `format("penstock-state")`.

Each state partition is one partition of the DataFrame and is read in its task: no state passes through the driver's
memory. A task reads the state that is committed at that time; state partitions are not read in one common snapshot.

Keys are selected by an option and not by pushed filters: Spark would keep the restriction of a pushed filter for every
later query on the same DataFrame, also for queries without that filter.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa
from pyarrow import RecordBatch
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from penstock.model.errors import UsageError
from penstock.pipeline.datasource.columns import arrow_schema
from penstock.pipeline.datasource.reader import recognised
from penstock.pipeline.streams.driver import require_reachable
from penstock.streams.app import part_of
from penstock.streams.state.api import Started
from penstock.streams.state.registry import DEFAULT_STATE, open_state
from penstock.streams.state_reader import Kept, find_stream, look

NAME = "penstock-state"
# The fields of `Kept`, in the same order.
COLUMNS = {"key": "STRING", "part": "INT", "state": "STRING", "expires_at": "TIMESTAMP"}
READ_PAGE = 5_000


def read(
    spark: SparkSession, stream: str, *, state: str = DEFAULT_STATE, keys: Sequence[str] | None = None
) -> DataFrame:
    """Return the state of a stream: one row per key, or per given key, with `state` as JSON."""
    with closing(open_state(state)) as store:
        require_reachable(store, spark.sparkContext.master)
        find_stream(store, stream)
    spark.dataSource.register(StateDataSource)
    options = {"stream": stream, "state": state} | ({} if keys is None else {"keys": json.dumps(list(keys))})
    return spark.read.format(NAME).options(**options).load()


@dataclass(frozen=True, slots=True)
class StateOptions:
    """Validated options of `format("penstock-state")`."""

    stream: str
    state: str = DEFAULT_STATE
    keys: frozenset[str] | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "StateOptions":
        given: dict[str, Any] = dict(recognised(options, cls.__dataclass_fields__, NAME))
        if "stream" not in given:
            raise UsageError(f"missing option 'stream' for format {NAME}")
        return cls(**given | ({"keys": _keys(given["keys"])} if "keys" in given else {}))


def _keys(text: str) -> frozenset[str]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, list) or not all(isinstance(key, str) for key in found):
        raise UsageError(f'invalid keys {text!r}; expected a JSON array of strings such as ["ada", "bob"]')
    return frozenset(found)


class StateDataSource(DataSource):
    """Options: stream (its name), state (URL of the state store), keys (JSON array of keys; by default all keys)."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._checked = StateOptions.parse(options)

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())

    def reader(self, schema: Any) -> "StateReader":  # noqa: ARG002
        return StateReader(self._checked)


class StateInputPartition(InputPartition):
    """One state partition of the stream."""

    def __init__(self, started: Started, number: int) -> None:
        super().__init__(number)
        self.started = started
        self.number = number


class StateReader(DataSourceReader):
    """Reader of state partitions. Selected keys are looked up only in the state partitions that they belong to."""

    def __init__(self, options: StateOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[StateInputPartition]:
        with closing(open_state(self._options.state)) as store:
            started = find_stream(store, self._options.stream)
        if self._options.keys is None:
            return [StateInputPartition(started, number) for number in range(started.parts)]
        numbers = sorted({part_of(key, started.parts) for key in self._options.keys})
        return [StateInputPartition(started, number) for number in numbers or [0]]  # Spark makes a partition of []

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        assert isinstance(partition, StateInputPartition)
        with closing(open_state(self._options.state)) as store:
            found = look(store, partition.started, self._options.keys, part=partition.number)
            while page := list(islice(found, READ_PAGE)):
                yield _record_batch(page)


def _record_batch(page: Sequence[Kept]) -> RecordBatch:
    schema = arrow_schema(COLUMNS)
    columns = zip(zip(*page, strict=True), schema, strict=True)
    return RecordBatch.from_arrays([pa.array(values, field.type) for values, field in columns], schema=schema)
