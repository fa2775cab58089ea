"""SQL fragments for the columns that move with an event, shared by all statements that move rows; and the tables of the
unsettled states."""

from penstock.model.lifecycle import State
from penstock.store.sql.schema import CHANGING

COLUMNS = ", ".join(CHANGING)
UNSETTLED = {State.PENDING: "penstock_pending", State.CLAIMED: "penstock_claimed"}

CHANGED_BY = "(SELECT claimant FROM penstock_leases WHERE lease_id = :lease_id)"

# Column values of an event that starts over (FRESH), is replayed (REPLAYED) or is retried (RETRIED).
FRESH = {
    "attempts": "0",
    "deliveries": "0",
    "replays": "0",
    "suspect": "0",
    "available_at": "{now}",
    "last_error": "NULL",
}
REPLAYED = FRESH | {"replays": "replays + 1"}
RETRIED = {
    "ordering_key": "CASE WHEN NOT :skip THEN ordering_key END",
    "attempts": "attempts + 1",
    "suspect": "0",
    "last_error": "error",
}

# Columns in the order of `Delivery`, from a row of a state table and its event `e`.
DELIVERY = (
    "{row}.seq, coalesce(e.origin, e.event_id), e.event_type, {row}.queue, e.payload, e.headers, e.partition_key, "
    "{row}.ordering_key, {row}.priority, e.created_at, {row}.available_at, {row}.attempts, {deliveries}, "
    "{row}.max_attempts, {row}.replays, {row}.suspect, {row}.last_error"
)


def changing(**expressions: str) -> str:
    """Return the columns that move with an event, in order; replace those named by their expression."""
    unknown = expressions.keys() - set(CHANGING)
    assert not unknown, unknown
    return ", ".join(expressions.get(name, name) for name in CHANGING)
