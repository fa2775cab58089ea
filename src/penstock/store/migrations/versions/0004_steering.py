"""Steering: queues that are paused or limited, and what handlers say of their events."""

from alembic import op

from penstock.store.migrate import run_beside

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """The tables are written in each database's own SQL, to be read by the people who run it."""
    run_beside(__file__, op.get_bind())
