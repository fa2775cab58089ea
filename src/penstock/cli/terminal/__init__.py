"""Input and output of a command: options, filters, tables, confirmations, exit codes."""
