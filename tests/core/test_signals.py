"""SIGTERM and Ctrl-C: the first signal stops gracefully, a second Ctrl-C at once."""

import signal
import threading

import pytest

from penstock.runtime.signals import stopped_by_signals

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@pytest.mark.parametrize("first", SIGNALS)
def test_second_ctrl_c_raises_keyboard_interrupt(first: signal.Signals) -> None:
    before, ending = [signal.getsignal(number) for number in SIGNALS], threading.Event()
    with stopped_by_signals(ending):
        signal.raise_signal(first)
        assert ending.is_set()
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_later_signals_call_custom_function() -> None:
    numbers: list[int] = []
    with stopped_by_signals(threading.Event(), numbers.append):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
            signal.raise_signal(number)
    assert numbers == [signal.SIGTERM, signal.SIGINT]


def test_signals_are_handled_in_main_thread_only() -> None:
    before, found = signal.getsignal(signal.SIGTERM), []

    def listen() -> None:
        with stopped_by_signals(threading.Event()):
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    assert found == [before]
