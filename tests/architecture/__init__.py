"""Import graph of the package and its diagram in `docs/internals/architecture.md`; see `make architecture`."""
