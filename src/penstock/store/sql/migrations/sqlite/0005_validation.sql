-- Validation: plain SQL cannot emit events that cannot be delivered, and those that are there become dead letters.

DROP TRIGGER penstock_emit;

-- As in 0002, with a look at each field first. Penstock's own emits are checked before they come here.
CREATE TRIGGER penstock_emit INSTEAD OF INSERT ON penstock_outbox
BEGIN
    SELECT CASE
        WHEN typeof(NEW.event_type) <> 'text' OR length(NEW.event_type) NOT BETWEEN 1 AND 255
        THEN RAISE(ABORT, 'penstock_outbox: event_type must be a text of 1 to 255 characters')
        WHEN NEW.queue IS NOT NULL AND (typeof(NEW.queue) <> 'text' OR length(NEW.queue) NOT BETWEEN 1 AND 255)
        THEN RAISE(ABORT, 'penstock_outbox: queue must be a text of 1 to 255 characters')
        WHEN NEW.partition_key IS NOT NULL AND (typeof(NEW.partition_key) <> 'text' OR length(NEW.partition_key) NOT BETWEEN 1 AND 255)
        THEN RAISE(ABORT, 'penstock_outbox: partition_key must be a text of 1 to 255 characters')
        WHEN NEW.ordering_key IS NOT NULL AND (typeof(NEW.ordering_key) <> 'text' OR length(NEW.ordering_key) NOT BETWEEN 1 AND 255)
        THEN RAISE(ABORT, 'penstock_outbox: ordering_key must be a text of 1 to 255 characters')
        WHEN NEW.dedupe_key IS NOT NULL AND (typeof(NEW.dedupe_key) <> 'text' OR length(NEW.dedupe_key) NOT BETWEEN 1 AND 255)
        THEN RAISE(ABORT, 'penstock_outbox: dedupe_key must be a text of 1 to 255 characters')
        WHEN NEW.event_id IS NOT NULL
             AND (typeof(NEW.event_id) <> 'text' OR length(replace(NEW.event_id, '-', '')) <> 32
                  OR lower(replace(NEW.event_id, '-', '')) GLOB '*[^0-9a-f]*')
        THEN RAISE(ABORT, 'penstock_outbox: event_id must be a UUID')
        WHEN NEW.headers IS NOT NULL AND (typeof(NEW.headers) <> 'text' OR NOT json_valid(NEW.headers))
        THEN RAISE(ABORT, 'penstock_outbox: headers must be a JSON object of strings')
        WHEN NEW.headers IS NOT NULL AND (
             json_type(NEW.headers) NOT IN ('object', 'null')
             OR EXISTS (SELECT 1 FROM json_each(NEW.headers) h WHERE json_type(NEW.headers) = 'object' AND h.type <> 'text'))
        THEN RAISE(ABORT, 'penstock_outbox: headers must be a JSON object of strings')
        WHEN NEW.priority IS NOT NULL AND (typeof(NEW.priority) <> 'integer' OR NEW.priority NOT BETWEEN -100 AND 100)
        THEN RAISE(ABORT, 'penstock_outbox: priority must be an integer in -100 to 100')
        WHEN NEW.max_attempts IS NOT NULL
             AND (typeof(NEW.max_attempts) <> 'integer' OR NEW.max_attempts NOT BETWEEN 1 AND 2147483647)
        THEN RAISE(ABORT, 'penstock_outbox: max_attempts must be an integer, 1 or more')
        WHEN NEW.created_at IS NOT NULL
             AND (typeof(NEW.created_at) NOT IN ('integer', 'real') OR NEW.created_at NOT BETWEEN -62135510400000000 AND 253402128000000000)
        THEN RAISE(ABORT, 'penstock_outbox: created_at must be microseconds since 1970, in the years 1 to 9999')
        WHEN NEW.available_at IS NOT NULL
             AND (typeof(NEW.available_at) NOT IN ('integer', 'real') OR NEW.available_at NOT BETWEEN -62135510400000000 AND 253402128000000000)
        THEN RAISE(ABORT, 'penstock_outbox: available_at must be microseconds since 1970, in the years 1 to 9999')
        WHEN NEW.delay_seconds IS NOT NULL
             AND (typeof(NEW.delay_seconds) NOT IN ('integer', 'real') OR NEW.delay_seconds NOT BETWEEN 0 AND 3155760000)
        THEN RAISE(ABORT, 'penstock_outbox: delay_seconds must lie in 0 to 100 years')
        WHEN NEW.dedupe_seconds IS NOT NULL
             AND (typeof(NEW.dedupe_seconds) NOT IN ('integer', 'real')
                  OR NEW.dedupe_seconds <= 0 OR NEW.dedupe_seconds > 3155760000)
        THEN RAISE(ABORT, 'penstock_outbox: dedupe_seconds must be greater than 0, and at most 100 years')
    END;
    SELECT RAISE(IGNORE) FROM penstock_dedupe d
    WHERE d.queue = coalesce(NEW.queue, 'outbox') AND d.dedupe_key = NEW.dedupe_key
      AND d.expires_at > coalesce(NEW.created_at, CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER));
    INSERT INTO penstock_events (event_id, event_type, payload, headers, partition_key, ordering_key, created_at)
    VALUES (coalesce(
                lower(replace(NEW.event_id, '-', '')),
                -- A random UUID: its digits, with the version and the variant in their places.
                lower(hex(randomblob(6)) || '4' || substr(hex(randomblob(2)), 2)
                      || substr('89ab', 1 + (random() & 3), 1) || substr(hex(randomblob(8)), 2))),
            NEW.event_type, CAST(coalesce(NEW.payload, x'') AS BLOB), nullif(NEW.headers, 'null'), NEW.partition_key, NEW.ordering_key,
            coalesce(CAST(NEW.created_at AS INTEGER), CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)));
    INSERT INTO penstock_pending (seq, queue, ordering_key, priority, attempts, deliveries, max_attempts, replays, suspect,
                                  available_at, last_error)
    SELECT e.seq, coalesce(NEW.queue, 'outbox'), NEW.ordering_key, coalesce(NEW.priority, 0), 0, 0, NEW.max_attempts, 0, 0,
           coalesce(CAST(NEW.available_at AS INTEGER), e.created_at + CAST(coalesce(NEW.delay_seconds, 0) * 1000000 AS INTEGER)), NULL
    FROM penstock_events e WHERE e.seq = (SELECT max(seq) FROM penstock_events);
    INSERT INTO penstock_keys (queue, ordering_key, next_at)
    SELECT coalesce(NEW.queue, 'outbox'), NEW.ordering_key, e.created_at
    FROM penstock_events e WHERE e.seq = (SELECT max(seq) FROM penstock_events) AND NEW.ordering_key IS NOT NULL
    ON CONFLICT DO NOTHING;
    INSERT INTO penstock_dedupe (queue, dedupe_key, event_id, expires_at)
    SELECT coalesce(NEW.queue, 'outbox'), NEW.dedupe_key, e.event_id,
           e.created_at + CAST(coalesce(NEW.dedupe_seconds, 86400) * 1000000 AS INTEGER)
    FROM penstock_events e WHERE e.seq = (SELECT max(seq) FROM penstock_events) AND NEW.dedupe_key IS NOT NULL
    ON CONFLICT (queue, dedupe_key) DO UPDATE SET event_id = excluded.event_id, expires_at = excluded.expires_at;
END;

-- Pending events that made every claim of their queue fail.
CREATE TEMPORARY TABLE penstock_unreadable AS
SELECT seq, queue, ordering_key, readable_id, readable_headers, readable_times,
       'emitted by plain SQL with '
       || CASE WHEN readable_id THEN '' ELSE 'an event_id that is no UUID (' || quote(event_id) || '), ' END
       || CASE WHEN readable_headers THEN '' ELSE 'headers that are no JSON object of strings, ' END
       || CASE WHEN readable_times THEN '' ELSE 'a time that is not in the years 1 to 9999, ' END
       || CASE WHEN readable_numbers THEN '' ELSE 'a priority or max_attempts that is no integer, ' END AS error
FROM (
    SELECT p.seq, p.queue, p.ordering_key, e.event_id,
           typeof(e.event_id) = 'text' AND length(e.event_id) = 32 AND e.event_id NOT GLOB '*[^0-9a-f]*' AS readable_id,
           CASE WHEN e.headers IS NULL THEN 1
                WHEN typeof(e.headers) <> 'text' OR NOT json_valid(e.headers) THEN 0
                WHEN json_type(e.headers) = 'null' THEN 1
                WHEN json_type(e.headers) <> 'object' THEN 0
                ELSE NOT EXISTS (SELECT 1 FROM json_each(e.headers) h WHERE h.type <> 'text') END AS readable_headers,
           typeof(e.created_at) IN ('integer', 'real') AND e.created_at BETWEEN -62135510400000000 AND 253402128000000000
               AND typeof(p.available_at) IN ('integer', 'real')
               AND p.available_at BETWEEN -62135510400000000 AND 253402128000000000 AS readable_times,
           typeof(p.priority) = 'integer' AND typeof(p.max_attempts) IN ('integer', 'null') AS readable_numbers
    FROM penstock_pending p JOIN penstock_events e ON e.seq = p.seq
)
WHERE NOT (readable_id AND readable_headers AND readable_times AND readable_numbers);

UPDATE penstock_unreadable SET error = substr(error, 1, length(error) - 2);

INSERT INTO penstock_history (seq, at, what, attempts, lease_id, "by", detail)
SELECT p.seq, CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER), 'died', p.attempts, NULL, 'penstock init', u.error
FROM penstock_unreadable u JOIN penstock_pending p ON p.seq = u.seq;

INSERT INTO penstock_archive (seq, queue, ordering_key, priority, attempts, deliveries, max_attempts, replays, suspect,
                              available_at, last_error, state, settled_at, lease_id)
SELECT p.seq, p.queue, p.ordering_key, CASE typeof(p.priority) WHEN 'integer' THEN p.priority ELSE 0 END, p.attempts,
       p.deliveries, CASE typeof(p.max_attempts) WHEN 'integer' THEN p.max_attempts END, p.replays, p.suspect,
       CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER), u.error, 'DEAD',
       CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER), NULL
FROM penstock_unreadable u JOIN penstock_pending p ON p.seq = u.seq;

DELETE FROM penstock_pending WHERE seq IN (SELECT seq FROM penstock_unreadable);

-- A dead letter can be looked at and replayed: it gets an id and times that can be read, and keeps its headers as a text.
UPDATE penstock_events
SET event_id = CASE WHEN u.readable_id THEN event_id ELSE
                      lower(hex(randomblob(6)) || '4' || substr(hex(randomblob(2)), 2)
                      || substr('89ab', 1 + (random() & 3), 1) || substr(hex(randomblob(8)), 2)) END,
    headers = CASE WHEN u.readable_headers THEN headers
                   ELSE json_object('penstock-unreadable-headers', CAST(headers AS TEXT)) END,
    created_at = CASE WHEN u.readable_times THEN created_at
                      ELSE CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER) END
FROM penstock_unreadable u WHERE u.seq = penstock_events.seq;

UPDATE penstock_keys SET next_at = CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)
WHERE lease_id IS NULL
  AND (queue, ordering_key) IN (SELECT queue, ordering_key FROM penstock_unreadable WHERE ordering_key IS NOT NULL);

DROP TABLE penstock_unreadable;
