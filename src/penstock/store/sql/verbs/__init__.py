"""The verbs of a SQL store, the same for every database."""
