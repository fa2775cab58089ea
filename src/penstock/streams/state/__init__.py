"""State stores: where a stream keeps its state, and the inbox that says which events are in it."""
