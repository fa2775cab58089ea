"""Builds the documentation site from `docs` and the code; see `make docs`."""
