"""Store, outbox and output folder for tests of relays with a step."""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from relay_processes import delivered, lines

from penstock.model.lifecycle import State
from penstock.model.records import Record
from penstock.model.selection import Selection
from penstock.outbox import Outbox
from penstock.pipeline.relay.driver import run_relay
from penstock.pipeline.relay.report import RelayReport
from penstock.pipeline.relay.spec import RelayOptions


@dataclass(frozen=True)
class Ground:
    """An outbox, and a folder with the events that were delivered from it."""

    url: str
    outbox: Outbox
    folder: Path

    @property
    def files(self) -> Path:
        return self.folder / "out"

    def options(self, step: Any, **given: Any) -> RelayOptions:
        usual = {"store": self.url, "destination": f"file://{self.files}", "once": True, "step": step}
        return RelayOptions(**(usual | {"lease_seconds": 10.0, "batch": 500, "parallelism": 2} | given))

    def relay(self, step: Any, **given: Any) -> RelayReport:
        return run_relay(self.options(step, **given))

    def published(self) -> Counter[str]:
        return delivered(self.files)

    def numbers(self, folder: str = "out") -> list[int]:
        """Return the numbers in the delivered payloads, sorted."""
        return sorted(json.loads(line["payload"])["number"] for line in lines(self.folder / folder))

    def records(self) -> list[Record]:
        return list(self.outbox.store.find(Selection(everything=True), limit=10_000).records)

    def in_state(self, state: State) -> list[Record]:
        return list(self.outbox.store.find(Selection(states=frozenset({state})), limit=100_000).records)

    def states(self) -> Counter[State]:
        return Counter(record.state for record in self.records())

    def assert_nothing_held(self) -> None:
        stats = self.outbox.store.stats()
        assert (stats.total("claimed"), stats.open_leases) == (0, 0)
