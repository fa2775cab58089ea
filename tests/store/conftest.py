"""Fresh databases for the tests of the stores, and readable failures from the shipped suite."""

import pytest

pytest.register_assert_rewrite("penstock.testing.stores")
