"""Settings of property tests: no deadline, because a busy machine is not a failure."""

from hypothesis import settings

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
