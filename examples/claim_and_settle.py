"""Claim events under a lease, handle them and settle them directly through the store, as a relay or a worker does."""

import sys
import tempfile

import penstock
from penstock import Dead, Delivery, Outcome, Published, Retry


def act(event: Delivery) -> Outcome:
    """Return the outcome of an event. Every claimed event gets an outcome."""
    order = event.json()
    if order["amount"] < 0:
        return Dead("a negative amount won't get better")
    if event.attempts == 0 and order["amount"] > 100:
        return Retry("the bank is busy", delay_seconds=0)
    return Published()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, penstock.connect(f"sqlite:///{folder}/shop.db") as outbox:
        outbox.store.initialise()
        for amount in (10, 500, -1):
            outbox.emit("order.placed", {"amount": amount})
        while claim := outbox.store.claim("outbox", limit=100, claimant="example", lease_seconds=30):
            settlement = outbox.store.settle(claim.lease, {event.seq: act(event) for event in claim.events})
            sys.stdout.write(
                f"claimed {len(claim)}: {len(settlement.published)} published, "
                f"{len(settlement.retried)} retried, {len(settlement.dead)} dead\n"
            )


if __name__ == "__main__":
    main()


# Output:
# claimed 3: 1 published, 1 retried, 1 dead
# claimed 1: 1 published, 0 retried, 0 dead
