"""`format("penstock")` for streams that write and are to die while they do: see `tests.support.crashes`.

Register it in place of the real one, in a process that is armed. Spark sends it to the processes that stage and commit,
and there it arms them too.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from penstock.pipeline.datasource.reader import PenstockDataSource
from penstock.pipeline.datasource.writer import StagedRows, StreamWriter
from tests.support import crashes

if TYPE_CHECKING:
    from pyarrow import RecordBatch


class CrashingDataSource(PenstockDataSource):
    """The real data source, but for the arming."""

    def streamWriter(self, schema: Any, overwrite: bool) -> "CrashingStreamWriter":  # noqa: N802
        crashes.arm()  # the process that plans a batch, and the one that commits it
        writer = super().streamWriter(schema, overwrite)
        return CrashingStreamWriter(writer.target)


class CrashingStreamWriter(StreamWriter):
    """The real writer, but for the arming."""

    def write(self, iterator: Iterator["RecordBatch"]) -> StagedRows:  # type: ignore[override]
        crashes.arm()
        return super().write(iterator)
