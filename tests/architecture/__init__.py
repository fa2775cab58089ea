"""The import graph of the package, and its picture in `docs/internals/architecture.md`: see `make architecture`."""
