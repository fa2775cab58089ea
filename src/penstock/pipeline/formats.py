"""The Spark formats `penstock` and `penstock-state`."""

from typing import TYPE_CHECKING

from penstock.pipeline.datasource.reader import register_events
from penstock.pipeline.streams.state_datasource import StateDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: "SparkSession") -> None:
    """Register `format("penstock")` and `format("penstock-state")` with a session."""
    register_events(spark)
    spark.dataSource.register(StateDataSource)
