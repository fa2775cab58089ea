"""Exactly-once streams: handlers with state, whose effects happen once whatever is killed, lost or run twice."""
