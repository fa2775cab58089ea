"""Copies: an event for several destinations has a delivery for each, under the id that it was emitted with."""

from pathlib import Path

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """The statements are written in each database's own SQL."""
    path = Path(__file__).with_name(f"0002_copies.{op.get_bind().dialect.name}.sql")
    for statement in path.read_text().split("\n--;\n"):
        op.get_bind().exec_driver_sql(statement)
