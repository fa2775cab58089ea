"""The lake: events as Parquet files."""
