"""Conformance suite for stores: tests to inherit, for the requirements on every backend.

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def open_store(self): ...   # a function (options=None, clock=None) that opens the test's own database

A store in a SQL database uses `SqlStoreConformance`, which also needs the fixture `connection`: a connection of the
database's own driver. Time is constant in a test until its clock is advanced. `penstock.testing.stores.machine` has a
state machine for Hypothesis. A store without some of the capabilities names them in `lacks`, such as `lacks =
("ordering", "staging")`; their tests are not collected.
"""

from penstock.testing.stores.claiming import Claiming
from penstock.testing.stores.control import Cancelling, DiscardingSettled, Heads, Limiting, Noting, Pausing
from penstock.testing.stores.deaths import CountingDeaths, ListingDeaths
from penstock.testing.stores.emitting import Deduplicating, EmittingEvents
from penstock.testing.stores.inspection import Counting, FindingEvents, Relays, Undeclared
from penstock.testing.stores.leasing import FencingLeases, Heartbeats, HeldLeases, Releasing, Repeating
from penstock.testing.stores.maintenance import Purging, Replaying, Tending
from penstock.testing.stores.ordering import Blocking, Ordering, Skipping
from penstock.testing.stores.reaping import Poison, Reaping
from penstock.testing.stores.routing import RoutingEvents
from penstock.testing.stores.scenario import ManualClock, OpenStore
from penstock.testing.stores.settling import Dying, SettlingAgain, SettlingLeases, Timelines
from penstock.testing.stores.sql import (
    CallersTransaction,
    DatabaseConnection,
    NoPlainSql,
    OutboxView,
    PlainSql,
    SqlHousekeeping,
)
from penstock.testing.stores.staging import CommittingOnce, DroppingStaged, FindingSeveral, StagedKeys, StagingEvents


class StoreConformance(
    EmittingEvents,
    Deduplicating,
    Claiming,
    FencingLeases,
    Repeating,
    Heartbeats,
    HeldLeases,
    Releasing,
    SettlingLeases,
    SettlingAgain,
    Timelines,
    Dying,
    Reaping,
    Poison,
    Ordering,
    Blocking,
    Skipping,
    RoutingEvents,
    Replaying,
    Purging,
    Tending,
    FindingEvents,
    Counting,
    ListingDeaths,
    CountingDeaths,
    Relays,
    StagingEvents,
    CommittingOnce,
    StagedKeys,
    DroppingStaged,
    FindingSeveral,
    Pausing,
    Limiting,
    Cancelling,
    Noting,
    DiscardingSettled,
    Heads,
    Undeclared,
):
    """All operations and transitions of a store, and the invariants."""


class SqlStoreConformance(StoreConformance, CallersTransaction, OutboxView, PlainSql, NoPlainSql, SqlHousekeeping):
    """All tests of `StoreConformance`, and those that need a SQL database."""


__all__ = ["DatabaseConnection", "ManualClock", "OpenStore", "SqlStoreConformance", "StoreConformance"]
