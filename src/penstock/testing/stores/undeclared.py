"""The conformance suite's part on capabilities: a store refuses what it doesn't declare."""

from uuid import uuid4

import pytest

from penstock.model.errors import UsageError
from penstock.model.lifecycle import State
from penstock.store.api import StagedPart, Store
from penstock.testing.stores.scenario import StoreScenario, claim, emit, event, seqs, states

CAPABILITIES = ("insert_into_view", "limits", "ordering", "routing", "staging")


class Undeclared(StoreScenario):
    def test_lacks_names_the_undeclared_capabilities(self, store: Store) -> None:
        assert sorted(self.lacks) == [name for name in CAPABILITIES if not getattr(store.capabilities, name)]

    def test_undeclared_capabilities_are_refused_and_change_nothing(self, store: Store) -> None:
        emit(store)
        held = claim(store)
        part = StagedPart(uuid4(), uuid4())
        if not store.capabilities.ordering:
            with pytest.raises(UsageError, match="ordering key"):
                store.append([event(), event(ordering_key="k")])
        if not store.capabilities.routing:
            with pytest.raises(UsageError, match="route"):
                store.route(held.lease, {seqs(held)[0]: ["there"]})
        if not store.capabilities.limits:
            with pytest.raises(UsageError, match="limit"):
                store.limit("outbox", 1)
        if not store.capabilities.staging:
            for verb in (
                lambda: store.stage(part, [event()]),
                lambda: store.commit_staged(part.write_id, 0, {part.part_id: 1}, once=True),
                lambda: store.drop_staged(part.write_id),
            ):
                with pytest.raises(UsageError, match="stag"):
                    verb()
        assert states(store) == {State.CLAIMED: 1}
        assert store.controls() == []
