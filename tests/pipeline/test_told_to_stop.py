"""What is told to stop while it starts ends in order."""

import threading
from typing import NoReturn

import pytest

from penstock.errors import PipelineError
from penstock.pipeline.stopping import open_unless


def _fails() -> NoReturn:
    raise PipelineError("Java ended with code -15")


def test_a_java_that_a_signal_to_the_whole_group_ended_is_no_error() -> None:
    ending = threading.Event()
    ending.set()
    assert open_unless(ending, _fails) is None


def test_any_other_failure_to_start_is_one() -> None:
    with pytest.raises(PipelineError, match="-15"):
        open_unless(threading.Event(), _fails)
