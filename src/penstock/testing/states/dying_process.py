"""A process that is killed while it writes to a state partition. Run `main` in a separate process.

Each transaction increments the sum of every key, inserts one inbox key per state key, advances the offset and one timer
of every key, replaces another timer, and emits an event. A partly applied transaction is therefore visible as a
contradiction. The process prints the number of each committed transaction. It kills itself by SIGKILL in the third
transaction, at POINT; with `never`, the parent kills the process.
"""

import os
import signal
from uuid import UUID

from penstock.model.event import Event, EventId
from penstock.streams.state.api import Arrival, Saved, StatePartition
from penstock.streams.state.registry import open_state

STREAM = "dying"
SOURCE_PART = "orders/0"
POINTS = ("entered", "half saved", "saved", "timers set", "before commit", "after commit")
FATAL = 3


def fill(part: StatePartition, number: int, size: int, point: str) -> None:
    """Run one transaction. The process may kill itself in it."""

    def reach(name: str) -> None:
        if number == FATAL and name == point:
            os.kill(os.getpid(), signal.SIGKILL)

    keys = [f"key-{place}" for place in range(size)]
    with part.transaction() as transaction:
        transaction.fresh([Arrival(f"{number}-{place}") for place in range(size)])
        reach("entered")
        sums = {key: int(saved.data) for key, saved in transaction.load(keys).items()}
        changed = {key: Saved(b"%d" % (sums.get(key, 0) + 1)) for key in keys}
        transaction.save({key: changed[key] for key in keys[: size // 2]})
        reach("half saved")
        transaction.save({key: changed[key] for key in keys[size // 2 :]})
        reach("saved")
        transaction.set_timers({(key, "moves"): float(number) for key in keys})
        transaction.set_timers({(key, f"wave {number}"): float(number) for key in keys})
        reach("timers set")
        transaction.set_timers({(key, f"wave {number - 1}"): None for key in keys})
        transaction.advance({SOURCE_PART: number})
        transaction.emit([Event(event_type="sum", event_id=EventId(UUID(int=number)))])
        reach("before commit")
    reach("after commit")


def main(url: str, point: str, size: str) -> None:
    """Run transactions until killed."""
    store = open_state(url)
    part = store.open_part(store.start(STREAM, 1), 0)
    number = 0
    while True:
        number += 1
        fill(part, number, int(size), point)
        print(number, flush=True)
