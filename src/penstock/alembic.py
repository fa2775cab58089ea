"""Filters for Alembic's autogenerate that exclude Penstock's tables, which `penstock init` creates and upgrades.

Use them in the env.py of an application whose database contains the store: without them, autogenerate drops every table
that is missing from the application's metadata. This module doesn't import Alembic.
"""

from collections.abc import Mapping
from typing import Any

PREFIX = "penstock_"


def include_name(name: str | None, type_: str, parent_names: Mapping[str, str | None]) -> bool:
    """Return False for a table of Penstock, so that it isn't reflected, and for its columns and indexes."""
    return type_ == "schema" or not _owned(parent_names.get("table_name") or name)


def include_object(object_: Any, name: str | None, type_: str, reflected: bool, compare_to: Any) -> bool:  # noqa: ARG001
    """Return False for a table or view of Penstock and for its columns, indexes and constraints."""
    table = getattr(object_, "table", None)
    return not _owned(name if table is None else table.name)


def _owned(name: str | None) -> bool:
    return name is not None and name.startswith(PREFIX)
