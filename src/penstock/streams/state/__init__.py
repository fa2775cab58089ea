"""Stores of the state of streams, and of the inbox: the ids of the events that are applied to the state."""
