"""Steering: queues that are paused or limited, and what handlers say of their events."""

from pathlib import Path

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """The tables are written in each database's own SQL, to be read by the people who run it."""
    path = Path(__file__).with_name(f"0004_steering.{op.get_bind().dialect.name}.sql")
    for statement in path.read_text().split("\n--;\n"):
        op.get_bind().exec_driver_sql(statement)
