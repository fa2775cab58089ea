"""Test support for users: conformance suites for publishers, stores and states, harnesses for handlers and streams."""
