"""Source of streams: Valkey and Redis streams."""
