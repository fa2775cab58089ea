"""What a stream reads, on Spark: each source as a DataFrame of the same columns, and its acknowledgements."""

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession

from penstock.pipeline.datasource.columns import columns
from penstock.streams.event import KEY_HEADER, ORIGIN_HEADER, STREAM_HEADER
from penstock.streams.sources import REMEMBER_SECONDS

COLUMNS = columns(
    *("seq", "event_id", "event_type", "payload", "headers", "partition_key", "ordering_key", "created_at"),
    *("attempts", "replays", "lease", "token"),
) | {"source_partition": "STRING", "offset": "BIGINT"}
"""What every source brings. Rows are processed in the order of source partition, offset and seq. A lease and its
token are of a queue, a source partition and an offset of a source whose order is fixed."""

BLANK = {"attempts": 0, "replays": 0, "seq": 0, "event_type": ""}
"""What stands in columns that are never null where a source has nothing."""

STREAM_HEADERS = (ORIGIN_HEADER, KEY_HEADER, STREAM_HEADER)
"""What a stream writes on events that it moved to its own queue. From elsewhere they would say what isn't so."""


class SparkSource:
    """A source, on the driver: by default one that is the same from its first batch to its last, takes no
    acknowledgements and holds nothing open."""

    wants_acknowledgements = False
    """Whether it is to hear of its events one by one."""
    remember_seconds = REMEMBER_SECONDS
    """For how long the inbox keeps events that nothing else takes out of it."""
    checkpoint_version = ""
    """What the checkpoint is of, once loaded: with another version another checkpoint begins."""
    leases = False
    """Whether its events are claimed."""

    def load(self, spark: SparkSession) -> DataFrame:
        """The stream, with those of the columns above that it has."""
        raise NotImplementedError

    def topics(self) -> Mapping[str, str] | None:
        """Asked for each micro-batch: by the names of topics, how their partitions are named; None if they are named as
        they came. `StoreUnavailable` if that can't be told now."""
        return None

    def acknowledge(self, event_ids: Sequence[str]) -> None:
        """The state holds these. Without acknowledgements, the state, Spark's checkpoint or a lease has it."""

    def close(self) -> None:
        """Its stream has ended."""
