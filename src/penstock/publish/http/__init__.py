"""Publisher of webhooks, as signed CloudEvents."""
