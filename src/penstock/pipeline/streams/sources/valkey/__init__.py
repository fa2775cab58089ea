"""Source of streams: streams of Valkey and Redis."""
