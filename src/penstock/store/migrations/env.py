"""Alembic's entry point: runs on the connection that `penstock.store.migrate` passes in."""

from alembic import context

connection = context.config.attributes["connection"]
context.configure(connection=connection, version_table="penstock_version", transactional_ddl=True)
with context.begin_transaction():
    context.run_migrations()
