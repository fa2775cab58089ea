-- Copies: an event for several destinations has a delivery for each, under the id that it was emitted with.

-- The view that shows an event as one row. It can be read, and never written: views have no triggers here, and an INSERT
-- that went past them would make half an event, so it is a UNION. Ids are shown as people write them; those who look for
-- one event find it faster by its seq.
CREATE OR REPLACE SQL SECURITY INVOKER VIEW penstock_outbox AS
SELECT e.seq,
       LOWER(INSERT(INSERT(INSERT(INSERT(HEX(coalesce(e.origin, e.event_id)), 9, 0, '-'), 14, 0, '-'), 19, 0, '-'),
                    24, 0, '-')) AS event_id,
       e.event_type, s.queue, 'PENDING' AS state, e.payload, e.headers, e.partition_key, e.ordering_key,
       s.priority, s.attempts, s.deliveries, s.max_attempts, s.replays, s.suspect, s.last_error,
       e.created_at, s.available_at,
       NULL AS claimed_at, NULL AS claimed_by, NULL AS lease_expires_at, NULL AS published_at, NULL AS settled_at
FROM penstock_pending s JOIN penstock_events e ON e.seq = s.seq
UNION ALL
SELECT e.seq,
       LOWER(INSERT(INSERT(INSERT(INSERT(HEX(coalesce(e.origin, e.event_id)), 9, 0, '-'), 14, 0, '-'), 19, 0, '-'),
                    24, 0, '-')),
       e.event_type, s.queue, 'CLAIMED', e.payload, e.headers, e.partition_key, e.ordering_key,
       s.priority, s.attempts, s.deliveries, s.max_attempts, s.replays, s.suspect, s.last_error,
       e.created_at, s.available_at,
       l.claimed_at, l.claimant, l.expires_at, NULL, NULL
FROM penstock_claimed s JOIN penstock_events e ON e.seq = s.seq JOIN penstock_leases l ON l.lease_id = s.lease_id
UNION ALL
SELECT e.seq,
       LOWER(INSERT(INSERT(INSERT(INSERT(HEX(coalesce(e.origin, e.event_id)), 9, 0, '-'), 14, 0, '-'), 19, 0, '-'),
                    24, 0, '-')),
       e.event_type, s.queue, s.state, e.payload, e.headers, e.partition_key, e.ordering_key,
       s.priority, s.attempts, s.deliveries, s.max_attempts, s.replays, s.suspect, s.last_error,
       e.created_at, s.available_at,
       NULL, NULL, NULL, CASE s.state WHEN 'PUBLISHED' THEN s.settled_at END, s.settled_at
FROM penstock_archive s JOIN penstock_events e ON e.seq = s.seq;
