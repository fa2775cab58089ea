"""Tests, and the servers and processes that they use (`tests.support`)."""
