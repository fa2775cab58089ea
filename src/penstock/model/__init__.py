"""Values and pure rules, without I/O and without a clock."""
