"""`format("penstock")` for tests that crash a stream during its write; see `tests.support.crashes`.

Register the data source in place of the real one, in an armed process. Spark sends it to the processes that stage and
commit, where the data source arms the process as well.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from penstock.pipeline.datasource.reader import PenstockDataSource
from penstock.pipeline.datasource.writer import StagedRows, StreamWriter
from tests.support import crashes

if TYPE_CHECKING:
    from pyarrow import RecordBatch


class CrashingDataSource(PenstockDataSource):
    """The real data source, extended by arming."""

    def streamWriter(self, schema: Any, overwrite: bool) -> "CrashingStreamWriter":  # noqa: N802
        crashes.arm()  # in the process that plans a batch, and the process that commits it
        writer = super().streamWriter(schema, overwrite)
        return CrashingStreamWriter(writer.target)


class CrashingStreamWriter(StreamWriter):
    """The real writer, extended by arming."""

    def write(self, iterator: Iterator["RecordBatch"]) -> StagedRows:  # type: ignore[override]
        crashes.arm()
        return super().write(iterator)
