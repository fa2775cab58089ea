"""Reports of a running process."""
