"""Configuration: URLs and their options, routes, import paths, file permissions, optional dependencies."""
