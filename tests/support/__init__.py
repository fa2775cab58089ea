"""Servers, processes and crash points for tests, benchmarks and chaos."""
