"""Operating Penstock: `service.Admin` is the one place that the command line, HTTP, the dashboard and metrics call."""
