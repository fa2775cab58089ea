"""State in RocksDB on a local disk."""
