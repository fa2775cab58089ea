"""Spark: sessions, slices, the stop channel, shipped code."""
