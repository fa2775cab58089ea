"""Log output on standard error."""

import io
import sys

import pytest

from penstock.telemetry import log


def test_log_follows_replaced_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that runs several commands may replace `sys.stderr` before each and close it afterwards."""
    first, second = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", first)
    log.to_stderr()
    log.info("stream_started", epoch=1)
    assert first.getvalue().endswith("INFO    stream_started epoch=1\n")
    first.close()

    monkeypatch.setattr(sys, "stderr", second)
    log.to_stderr()
    log.warn("stream_stopped", epoch=1)
    assert second.getvalue().endswith("WARNING stream_stopped epoch=1\n")
    assert second.getvalue().count("\n") == 1


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("orders", "orders"),
        (3, "3"),
        (2.5, "2.5"),
        ("kafka://host:9092/topic?acks", "kafka://host:9092/topic?acks"),
        ("", '""'),
        ("two words", '"two words"'),
        ("a=b", '"a=b"'),
        ('say "no"', '"say \\"no\\""'),
        ("line\nERROR forged", '"line\\nERROR forged"'),
        ("\x1b[31mred", '"\\u001b[31mred"'),
        ("\u2028", '"\\u2028"'),
        ("Straße zu", '"Straße zu"'),
        (ValueError("no such topic"), '"no such topic"'),
    ],
)
def test_log_values_stay_in_their_field(value: object, shown: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", "penstock"):
        log.warn("publish_failed", error=value, count=1, queue=None)
    assert caplog.messages == [f"publish_failed error={shown} count=1"]
