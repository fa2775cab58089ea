"""Conformance suite for state stores: tests to inherit, for the requirements on every state store.

    class TestMyState(StateStoreConformance):
        @pytest.fixture
        def open_state(self): ...   # a function that opens the test's database, empty at first; each call a new store

The crash tests start processes that open the store by its URL.
"""

from penstock.testing.states.contents import Inbox, SavingState
from penstock.testing.states.crashes import Crashing, Racing
from penstock.testing.states.fencing import FencingTasks
from penstock.testing.states.json_lines import SavingLines
from penstock.testing.states.reading import ReadingState
from penstock.testing.states.scenario import OpenState
from penstock.testing.states.timers import Timing


class StateStoreConformance(Inbox, SavingState, SavingLines, Timing, FencingTasks, ReadingState, Crashing, Racing):
    """All requirements of a stream on its state store."""


__all__ = ["OpenState", "StateStoreConformance"]
