"""Valkey and Redis streams."""
