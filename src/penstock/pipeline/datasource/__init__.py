"""`format("penstock")`: events as DataFrames, and DataFrames as events."""
