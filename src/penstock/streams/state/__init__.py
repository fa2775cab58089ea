"""State stores of streams: the states of the keys, and the inbox with the ids of the applied events."""
