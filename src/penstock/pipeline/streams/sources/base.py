"""Base class of stream sources on Spark: a DataFrame with common columns, and acknowledgements."""

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession

from penstock.pipeline.datasource.columns import columns
from penstock.streams.sources import REMEMBER_SECONDS

COLUMNS = columns(
    *("seq", "event_id", "event_type", "payload", "headers", "partition_key", "ordering_key", "created_at"),
    *("attempts", "replays", "lease", "token"),
) | {"source_partition": "STRING", "offset": "BIGINT"}
"""Columns of all sources. Rows are processed in the order of source partition, offset and seq. Queues set lease and
token; sources with a fixed order set source partition and offset."""

BLANK = {"attempts": 0, "replays": 0, "seq": 0, "event_type": ""}
"""Values of columns that are never null, for rows without a value from the source."""


class SparkSource:
    """A stream's source on the driver. By default source partitions keep their names, and the source needs
    no acknowledgements and no resources."""

    wants_acknowledgements = False
    """True if the source needs an acknowledgement for each event."""
    remember_seconds = REMEMBER_SECONDS
    """Seconds for which the inbox keeps events that no acknowledgement removes."""
    checkpoint_version = ""
    """Version of the checkpoint, set by `load`. Each version has a separate checkpoint."""
    leases = False
    """True if events are claimed under leases."""

    def load(self, spark: SparkSession) -> DataFrame:
        """Return the streaming DataFrame, with those of the `COLUMNS` that the source has."""
        raise NotImplementedError

    def topics(self) -> Mapping[str, str] | None:
        """Return names for source partitions by topic name; None if source partitions keep their names.

        Called for each micro-batch. Raise `StoreUnavailable` if the names are not available now.
        """
        return None

    def acknowledge(self, event_ids: Sequence[str]) -> None:
        """Acknowledge events after their state is committed.

        By default nothing is done: the state, Spark's checkpoint or a lease records the progress of the source.
        """

    def close(self) -> None:
        """Release resources after the stream has ended."""
