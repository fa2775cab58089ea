"""What goes into a stream and what must come out: orders whose sums by key are known beforehand. Values only."""

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

KEYS = 50
NEVER = -1
# One of so many fails once, one of so many always.
FAILING_ONCE = 23
FAILING_ALWAYS = 97
LARGEST_AMOUNT = 10**9


@dataclass(frozen=True, slots=True)
class Order:
    """One event. `fails` says how often its handler refuses it; `NEVER` that it is never taken."""

    number: int
    key: str
    amount: int
    fails: int = 0

    def document(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Sums:
    """The state of a key: how many orders it has had, and what they come to."""

    count: int
    sum: int


class Orders:
    """So many orders, the same ones for the same seed, handed out in portions."""

    def __init__(self, count: int, seed: int) -> None:
        chance = random.Random(seed)
        self.all = [_order(number, chance) for number in range(count)]
        self._handed_out = 0

    def portion(self, size: int) -> Sequence[Order]:
        """The next ones."""
        taken = self.all[self._handed_out : self._handed_out + size]
        self._handed_out += len(taken)
        return taken

    @property
    def left(self) -> int:
        return len(self.all) - self._handed_out

    @property
    def dead(self) -> set[int]:
        """The numbers of those that must end as dead letters."""
        return {order.number for order in self.all if order.fails == NEVER}

    @property
    def counted(self) -> set[int]:
        """The numbers of those that must be in the state, and of which one event each must be emitted."""
        return {order.number for order in self.all} - self.dead

    def sums(self) -> dict[str, Sums]:
        """What the state must be."""
        amounts: defaultdict[str, list[int]] = defaultdict(list)
        for order in self._taken():
            amounts[order.key].append(order.amount)
        return {key: Sums(len(found), sum(found)) for key, found in amounts.items()}

    def _taken(self) -> Iterator[Order]:
        return (order for order in self.all if order.fails != NEVER)


def _order(number: int, chance: random.Random) -> Order:
    fails = NEVER if number % FAILING_ALWAYS == 13 else int(number % FAILING_ONCE == 5)
    return Order(number, f"customer {chance.randrange(KEYS)}", chance.randrange(1, LARGEST_AMOUNT), fails)
