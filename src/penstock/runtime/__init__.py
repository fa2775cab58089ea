"""Parts that relays, streams, workers and jobs share."""
