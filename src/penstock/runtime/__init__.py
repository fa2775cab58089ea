"""Components shared by relays, streams, workers and jobs."""
