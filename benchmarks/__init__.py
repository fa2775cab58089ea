"""Benchmarks of Penstock on this machine, compared with PostgreSQL itself and with PgQueuer.

    python -m benchmarks relay --json

Each part is a module with a function `measure`. All parts use one PostgreSQL server, which the run starts. Progress
goes to standard error, the report to standard output.
"""
