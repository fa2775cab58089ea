"""Steps: importable by name, as a command line names them."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NO_FUNCTION = 42


def unchanged(events: "DataFrame") -> "DataFrame":
    return events


def even(events: "DataFrame") -> "DataFrame":
    """Those whose number is even."""
    return events.where("get_json_object(CAST(payload AS STRING), '$.number') % 2 = 0")
