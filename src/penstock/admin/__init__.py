"""Administration: `service.Admin` is the only entry point for the command line, HTTP, the dashboard and metrics."""
