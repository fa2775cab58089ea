"""The spine: events, their states, leases, ordering keys, dedupe windows, history, relays."""

from alembic import op

from penstock.store.migrate import run_beside

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """The tables are written in each database's own SQL, to be read by the people who run it."""
    run_beside(__file__, op.get_bind())
