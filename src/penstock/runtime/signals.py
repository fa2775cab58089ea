"""Graceful stop on SIGTERM and Ctrl-C."""

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from penstock.telemetry import log

NUMBERS = (signal.SIGTERM, signal.SIGINT)


def _interrupt(number: int) -> None:
    """Raise `KeyboardInterrupt` in the main thread if the signal is SIGINT (Ctrl-C)."""
    if number == signal.SIGINT:
        raise KeyboardInterrupt


@contextmanager
def stopped_by_signals(
    ending: threading.Event,
    at_once: Callable[[int], None] = _interrupt,
    *,
    logs: bool = True,
) -> Iterator[None]:
    """Set `ending` on SIGTERM or Ctrl-C; log the signal if `logs` is true. A second signal calls `at_once`."""
    heard: list[int] = []

    def end(number: int, _frame: object) -> None:
        heard.append(number)  # before `set`: a second signal may interrupt `set` while it holds a lock
        if len(heard) > 1 or ending.is_set():
            at_once(number)
            return
        if logs:
            log.info("stopping", hint="send the signal again to stop at once")
        ending.set()

    with signals_restored():
        _handle(dict.fromkeys(NUMBERS, end))
        yield


@contextmanager
def signals_restored() -> Iterator[None]:
    """Restore the previous handlers of SIGTERM and Ctrl-C on exit."""
    before = {number: signal.getsignal(number) for number in NUMBERS}
    try:
        yield
    finally:
        _handle(before)


def _handle(handlers: Mapping[signal.Signals, Any]) -> None:
    """Install signal handlers if this is the main thread; Python allows no other thread to do so."""
    if threading.current_thread() is threading.main_thread():
        for number, handler in handlers.items():
            signal.signal(number, handler)
