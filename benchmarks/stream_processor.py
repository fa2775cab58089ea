"""Processor for Spark's `transformWithState`, called for each key of a micro-batch."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from benchmarks.stream_contenders import decode

if TYPE_CHECKING:
    from pyspark.sql import Row


class TotalsProcessor(StatefulProcessor):
    """Count and sum in a single value, read and written once per key and micro-batch."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._totals = handle.getValueState("totals", "count LONG, sum LONG")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> "Iterator[Row]":  # noqa: ARG002, N802, N803
        count, total = self._totals.get() or (0, 0)
        for row in rows:
            count += 1
            total += decode(row.payload)
        self._totals.update((count, total))
        return iter(())

    def close(self) -> None:
        """Do nothing: no resource is open."""
