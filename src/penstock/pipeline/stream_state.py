"""The state of a stream as a DataFrame, also while the stream runs: `read`, and `format("penstock-state")`.

One partition for each part of the stream, which is read where its task runs: nothing goes through the driver's memory.
Each part is read as it is committed at that moment; parts don't wait for each other.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, Filter, In, InputPartition, IsNotNull

from penstock.errors import UsageError
from penstock.pipeline.streaming import require_reachable
from penstock.streams.app import part_of
from penstock.streams.looking import Kept, find_stream, look
from penstock.streams.state import DEFAULT_STATE, open_state
from penstock.streams.state.base import Started

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql import DataFrame, SparkSession

NAME = "penstock-state"
COLUMNS = "key STRING, part INT, state STRING, expires_at TIMESTAMP"
NEVER_NULL = {"key", "part", "state"}
READ_PAGE = 5_000


def read(spark: "SparkSession", stream: str, *, state: str = DEFAULT_STATE) -> "DataFrame":
    """The state of a stream: a row for each key, with `state` as JSON."""
    from penstock.pipeline.source import register

    with closing(open_state(state)) as store:
        require_reachable(store, spark.sparkContext.master)
        find_stream(store, stream)
    register(spark)
    return spark.read.format(NAME).option("stream", stream).option("state", state).load()


class StateDataSource(DataSource):
    """Options: stream, the name of one; and state, the URL of its state store."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._stream, self._state = _checked(options)

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return COLUMNS

    def reader(self, schema: Any) -> "StateReader":  # noqa: ARG002
        return StateReader(self._stream, self._state)


def _checked(options: Mapping[str, str]) -> tuple[str, str]:
    given = {name.lower(): value for name, value in options.items()}
    unknown = sorted(given.keys() - {"stream", "state"})
    if unknown:
        raise UsageError(f"format {NAME} has no option {unknown[0]!r}; it takes stream and state")
    if "stream" not in given:
        raise UsageError(f'format {NAME} needs to know which stream: .option("stream", …)')
    return given["stream"], given.get("state", DEFAULT_STATE)


class StatePartition(InputPartition):
    """One part of the stream."""

    def __init__(self, started: Started, number: int) -> None:
        super().__init__(number)
        self.started = started
        self.number = number


class StateReader(DataSourceReader):
    """Reads state part by part. Keys that the query filters by are looked up, and only in the parts that have them."""

    def __init__(self, stream: str, state: str) -> None:
        self._stream = stream
        self._state = state
        self.keys: frozenset[str] | None = None

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        for one in filters:
            match one:
                case EqualTo(("key",), str() as key):
                    self._narrow({key})
                case In(("key",), keys):
                    self._narrow({key for key in keys if isinstance(key, str)})
                case IsNotNull((name,)) if name in NEVER_NULL:
                    pass
                case _:
                    yield one

    def _narrow(self, keys: set[str]) -> None:
        self.keys = frozenset(keys) if self.keys is None else self.keys & keys

    def partitions(self) -> Sequence[StatePartition]:
        with closing(open_state(self._state)) as store:
            started = find_stream(store, self._stream)
        if self.keys is None:
            return [StatePartition(started, number) for number in range(started.parts)]
        numbers = sorted({part_of(key, started.parts) for key in self.keys})
        return [StatePartition(started, number) for number in numbers or [0]]  # of none Spark would make one

    def read(self, partition: InputPartition) -> Iterator["RecordBatch"]:
        assert isinstance(partition, StatePartition)
        with closing(open_state(self._state)) as store:
            found = look(store, partition.started, self.keys, part=partition.number)
            while page := list(islice(found, READ_PAGE)):
                yield _record_batch(page)


def _record_batch(page: Sequence[Kept]) -> "RecordBatch":
    import pyarrow as pa

    columns: dict[str, Any] = {
        "key": pa.array([kept.key for kept in page], pa.string()),
        "part": pa.array([kept.part for kept in page], pa.int32()),
        "state": pa.array([kept.state for kept in page], pa.string()),
        "expires_at": pa.array([kept.expires_at for kept in page], pa.timestamp("us", tz="UTC")),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
