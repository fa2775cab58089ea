"""Staging: rows that tasks have written and no commit has made events yet, and how far each stream has come."""

from alembic import op

from penstock.store.migrate import run_beside

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """The tables are written in each database's own SQL, to be read by the people who run it."""
    run_beside(__file__, op.get_bind())
