"""Copies: an event for several destinations has a delivery for each, under the id that it was emitted with."""

from alembic import op

from penstock.store.migrate import run_beside

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """The statements are written in each database's own SQL."""
    run_beside(__file__, op.get_bind())
