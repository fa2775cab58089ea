"""Settings of property tests: no deadline, so that a busy machine does not fail a test."""

from hypothesis import settings

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
