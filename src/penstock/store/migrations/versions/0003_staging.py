"""Staging: rows that tasks have written and no commit has made events yet, and how far each stream has come."""

from pathlib import Path

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """The tables are written in each database's own SQL, to be read by the people who run it."""
    path = Path(__file__).with_name(f"0003_staging.{op.get_bind().dialect.name}.sql")
    for statement in path.read_text().split("\n--;\n"):
        op.get_bind().exec_driver_sql(statement)
