"""What of Spark's words on standard error is shown."""

import pytest

from penstock.pipeline.words import Words

HUNG_UP = b"""Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/pyspark/daemon.py", line 264, in manager
    code = worker(sock, authenticated)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/venv/lib/python3.11/site-packages/pyspark/daemon.py", line 95, in worker
    outfile.flush()
BrokenPipeError: [Errno 32] Broken pipe
"""
ANOTHER = HUNG_UP.replace(b"BrokenPipeError: [Errno 32] Broken pipe", b"ValueError: no")
ELSEWHERE = HUNG_UP.replace(b"pyspark/daemon.py", b"shop/orders.py")
CUT_OFF = HUNG_UP.rpartition(b"BrokenPipe")[0]


def shown(told: bytes, size: int) -> bytes:
    words = Words()
    return b"".join(words.heard(told[at : at + size]) for at in range(0, len(told), size)) + words.rest()


@pytest.mark.parametrize("size", [1, 7, 100_000])
@pytest.mark.parametrize(
    ("told", "left"),
    [
        (b"one\ntwo\n", b"one\ntwo\n"),
        (b"one\ntwo", b"one\ntwo"),
        (b"", b""),
        (HUNG_UP, b""),
        (b"before\n" + HUNG_UP + HUNG_UP + b"  after\n", b"before\n  after\n"),
        (HUNG_UP.replace(b"BrokenPipeError", b"ConnectionResetError"), b""),
        (ANOTHER, ANOTHER),
        (ELSEWHERE, ELSEWHERE),
        (CUT_OFF, CUT_OFF),
        (CUT_OFF + b"SPARK Executor: failed\n" + HUNG_UP, CUT_OFF + b"SPARK Executor: failed\n"),
        (CUT_OFF + HUNG_UP, CUT_OFF),
        (ANOTHER + HUNG_UP + b"\n" + ELSEWHERE, ANOTHER + b"\n" + ELSEWHERE),
    ],
)
def test_only_that_spark_hung_up_on_a_python_is_not_shown(told: bytes, left: bytes, size: int) -> None:
    assert shown(told, size) == left


def test_a_whole_line_is_shown_at_once() -> None:
    words = Words()
    assert words.heard(b"one\ntw") == b"one\n"
    assert words.heard(b"o\n") == b"two\n"
