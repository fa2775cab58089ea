"""The spine: events, their states, leases, ordering keys, dedupe windows, history, relays."""

from pathlib import Path

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """The tables are written in each database's own SQL, to be read by the people who run it."""
    path = Path(__file__).with_name(f"0001_spine.{op.get_bind().dialect.name}.sql")
    for statement in path.read_text().split("\n--;\n"):
        op.get_bind().exec_driver_sql(statement)
