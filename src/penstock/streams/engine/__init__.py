"""Handlers run on the events of one state partition. No Spark here."""
