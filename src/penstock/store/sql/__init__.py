"""Stores in SQL databases."""
