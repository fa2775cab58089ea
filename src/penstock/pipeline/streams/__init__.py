"""Exactly-once streams on Spark."""
