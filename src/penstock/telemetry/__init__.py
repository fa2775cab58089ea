"""Log lines of a running process."""
