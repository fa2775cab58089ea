"""Spark's own contender: what `transformWithState` runs for each key of a micro-batch."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from benchmarks.stream_contenders import decode

if TYPE_CHECKING:
    from pyspark.sql import Row


class TotalsProcessor(StatefulProcessor):
    """A count and a sum, in one value: read once and written once for each key of a micro-batch."""

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
        """Nothing is open."""
