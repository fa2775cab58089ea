"""Settings: URLs and their options, routes, names of a user's objects, optional dependencies."""
