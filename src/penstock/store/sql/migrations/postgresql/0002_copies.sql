-- Copies: an event for several destinations has a delivery for each, under the id that it was emitted with.

-- A copy has an id of its own, which nobody sees, and its origin's, under which it is delivered and found.
ALTER TABLE penstock_events ADD COLUMN origin uuid;

CREATE INDEX penstock_events_origin ON penstock_events (origin) WHERE origin IS NOT NULL;

CREATE OR REPLACE VIEW penstock_outbox AS
SELECT e.seq, coalesce(e.origin, e.event_id) AS event_id, e.event_type, s.queue, s.state, e.payload, e.headers, e.partition_key, e.ordering_key,
       s.priority, s.attempts, s.deliveries, s.max_attempts, s.replays, s.suspect, s.last_error,
       e.created_at, s.available_at, s.claimed_at, s.claimed_by, s.lease_expires_at,
       CASE s.state WHEN 'PUBLISHED' THEN s.settled_at END AS published_at, s.settled_at,
       NULL::text AS dedupe_key, NULL::float8 AS dedupe_seconds, NULL::float8 AS delay_seconds
FROM penstock_events e
JOIN (
    SELECT seq, queue, 'PENDING' AS state, priority, attempts, deliveries, max_attempts, replays, suspect, last_error,
           available_at, NULL::timestamptz AS claimed_at, NULL::text AS claimed_by,
           NULL::timestamptz AS lease_expires_at, NULL::timestamptz AS settled_at
    FROM penstock_pending
    UNION ALL
    SELECT c.seq, c.queue, 'CLAIMED', c.priority, c.attempts, c.deliveries, c.max_attempts, c.replays, c.suspect,
           c.last_error, c.available_at, l.claimed_at, l.claimant, l.expires_at, NULL
    FROM penstock_claimed c JOIN penstock_leases l ON l.lease_id = c.lease_id
    UNION ALL
    SELECT seq, queue, state, priority, attempts, deliveries, max_attempts, replays, suspect, last_error,
           available_at, NULL, NULL, NULL, settled_at
    FROM penstock_archive
) s ON s.seq = e.seq;
