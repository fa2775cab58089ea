"""The relay: Spark tasks that claim, dispatch and settle."""
