"""SIGTERM and Ctrl-C: the first signal stops gracefully, a second Ctrl-C at once."""

import signal
import threading

import pytest

from penstock.runtime.signals import stopped_by_signals

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@pytest.mark.parametrize("first", SIGNALS)
def test_a_second_ctrl_c_ends_it_at_once(first: signal.Signals) -> None:
    before, ending = [signal.getsignal(number) for number in SIGNALS], threading.Event()
    with stopped_by_signals(ending):
        signal.raise_signal(first)
        assert ending.is_set()
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_another_way_to_end_at_once() -> None:
    numbers: list[int] = []
    with stopped_by_signals(threading.Event(), numbers.append):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
            signal.raise_signal(number)
    assert numbers == [signal.SIGTERM, signal.SIGINT]


def test_only_the_main_thread_listens() -> None:
    before, found = signal.getsignal(signal.SIGTERM), []

    def listen() -> None:
        with stopped_by_signals(threading.Event()):
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    assert found == [before]
