"""Steps that a command line can import by name."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NO_FUNCTION = 42


def unchanged(events: "DataFrame") -> "DataFrame":
    return events


def even(events: "DataFrame") -> "DataFrame":
    """Return the events with an even number."""
    return events.where("get_json_object(CAST(payload AS STRING), '$.number') % 2 = 0")
