"""What tests need, shipped to users: real servers, conformance suites and crash tools."""
