"""Sources of streams."""
