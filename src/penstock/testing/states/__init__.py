"""The conformance suite for state stores: what every one has to get right, as tests to inherit.

    class TestMyState(StateStoreConformance):
        @pytest.fixture
        def open_state(self): ...   # a function that opens the test's own, fresh place; each call a store of its own

The crashes start processes that open the store by its URL.
"""

from penstock.testing.states.contents import Inbox, SavingState
from penstock.testing.states.crashes import Crashing, Racing
from penstock.testing.states.fencing import FencingTasks
from penstock.testing.states.json_lines import SavingLines
from penstock.testing.states.reading import ReadingState
from penstock.testing.states.scenario import OpenState
from penstock.testing.states.timers import Timing


class StateStoreConformance(Inbox, SavingState, SavingLines, Timing, FencingTasks, ReadingState, Crashing, Racing):
    """Everything that a stream relies on."""


__all__ = ["OpenState", "StateStoreConformance"]
