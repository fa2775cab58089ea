"""Everything that users can depend on, as text: the lines in `frozen/` change only on purpose, with `make surface`."""
