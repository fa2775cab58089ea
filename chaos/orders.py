"""Input and expected result of a stream: orders whose sums by key are known beforehand. Values only, no I/O."""

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

KEYS = 50
NEVER = -1
# One order in FAILING_ONCE fails once, one in FAILING_ALWAYS fails always.
FAILING_ONCE = 23
FAILING_ALWAYS = 97
LARGEST_AMOUNT = 10**9


@dataclass(frozen=True, slots=True)
class Order:
    """One event. `fails` is how often its handler fails before it succeeds; `NEVER` means that it always fails."""

    number: int
    key: str
    amount: int
    fails: int = 0

    def document(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Sums:
    """State of a key: the number of its orders and the sum of their amounts."""

    count: int
    sum: int


class Orders:
    """A number of orders, identical for equal seeds, taken in portions."""

    def __init__(self, count: int, seed: int) -> None:
        chance = random.Random(seed)
        self.all = [_order(number, chance) for number in range(count)]
        self._handed_out = 0

    def portion(self, size: int) -> Sequence[Order]:
        """Return the next orders, at most `size`."""
        taken = self.all[self._handed_out : self._handed_out + size]
        self._handed_out += len(taken)
        return taken

    @property
    def left(self) -> int:
        return len(self.all) - self._handed_out

    @property
    def dead(self) -> set[int]:
        """Numbers of the orders that must become dead letters."""
        return {order.number for order in self.all if order.fails == NEVER}

    @property
    def counted(self) -> set[int]:
        """Numbers of the orders that must be in the state, with exactly one emitted event each."""
        return {order.number for order in self.all} - self.dead

    def sums(self) -> dict[str, Sums]:
        """Return the expected state by key."""
        amounts: defaultdict[str, list[int]] = defaultdict(list)
        for order in self._taken():
            amounts[order.key].append(order.amount)
        return {key: Sums(len(found), sum(found)) for key, found in amounts.items()}

    def _taken(self) -> Iterator[Order]:
        return (order for order in self.all if order.fails != NEVER)


def _order(number: int, chance: random.Random) -> Order:
    fails = NEVER if number % FAILING_ALWAYS == 13 else int(number % FAILING_ONCE == 5)
    return Order(number, f"customer {chance.randrange(KEYS)}", chance.randrange(1, LARGEST_AMOUNT), fails)
