"""The log on standard error."""

import io
import sys

import pytest

from penstock.telemetry import log


def test_the_log_follows_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who runs commands in their own process may catch what each says, and close it afterwards."""
    first, second = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", first)
    log.to_stderr()
    log.info("stream runs", epoch=1)
    assert first.getvalue().endswith("INFO    stream runs epoch=1\n")
    first.close()

    monkeypatch.setattr(sys, "stderr", second)
    log.to_stderr()
    log.warn("stream ends", epoch=1)
    assert second.getvalue().endswith("WARNING stream ends epoch=1\n")
    assert second.getvalue().count("\n") == 1
