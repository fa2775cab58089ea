"""Benchmarks: Penstock on this machine, beside what its database can do and what PgQueuer does.

    python -m benchmarks relay --json

Each part is a module with a function `measure`; all of them run on one PostgreSQL that the run starts for itself.
Progress goes to standard error, the report to standard output.
"""
