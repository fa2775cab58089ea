"""Relays announce themselves: so that whoever looks at a store sees which queues somebody serves."""

from uuid import UUID

from penstock.model.stats import Relay
from penstock.store.sql.dialect import Dialect

RELAY_STOPPING = "SELECT stopping FROM penstock_relays WHERE relay_id = :relay_id"
FORGET_RELAY = "DELETE FROM penstock_relays WHERE relay_id = :relay_id"


class PresenceVerbs(Dialect):
    """The verbs with which a relay comes and goes. See `penstock.store.api.Store`."""

    def announce(self, relay: Relay, *, stopping: bool = False) -> bool:
        """A relay says that it is alive; the answer says whether it should stop."""
        given = {"relay_id": relay.relay_id, "queue": relay.queue, "destination": relay.destination, "host": relay.host}
        return bool(self._transact(lambda tx: tx.scalar(self.upserts.ANNOUNCE_RELAY, stopping=stopping, **given)))

    def asked_to_stop(self, relay_id: UUID) -> bool:
        return bool(self._look(lambda tx: tx.scalar(RELAY_STOPPING, relay_id=relay_id)))

    def withdraw(self, relay_id: UUID) -> None:
        self._transact(lambda tx: tx.run(FORGET_RELAY, relay_id=relay_id))
