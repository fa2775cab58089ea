"""Verbs of a SQL store, common to all databases."""
