"""Execution of handlers on the events of one state partition, without Spark."""
