"""Tests, and the servers and processes they run against (`tests.support`)."""
