-- Validation: plain SQL cannot emit events that cannot be delivered, and those that are there become dead letters.

-- As in 0001, with a look at each field first. Penstock's own emits are checked before they come here.
CREATE OR REPLACE FUNCTION penstock_emit() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    moment timestamptz := coalesce(NEW.created_at, clock_timestamp());
    number bigint;
    problem text;
BEGIN
    NEW.event_id := coalesce(NEW.event_id, gen_random_uuid());
    NEW.queue := coalesce(NEW.queue, 'outbox');
    NEW.headers := nullif(NEW.headers, 'null');
    problem := CASE
        WHEN length(NEW.event_type) NOT BETWEEN 1 AND 255 THEN 'event_type must have 1 to 255 characters'
        WHEN length(NEW.queue) NOT BETWEEN 1 AND 255 THEN 'queue must have 1 to 255 characters'
        WHEN length(NEW.partition_key) NOT BETWEEN 1 AND 255 THEN 'partition_key must have 1 to 255 characters'
        WHEN length(NEW.ordering_key) NOT BETWEEN 1 AND 255 THEN 'ordering_key must have 1 to 255 characters'
        WHEN length(NEW.dedupe_key) NOT BETWEEN 1 AND 255 THEN 'dedupe_key must have 1 to 255 characters'
        WHEN NEW.headers IS NOT NULL AND (
            jsonb_typeof(NEW.headers) <> 'object'
            OR jsonb_path_exists(NEW.headers, 'strict $.* ? (@.type() <> "string")', '{}', true)
        ) THEN 'headers must be a JSON object of strings'
        WHEN NEW.priority NOT BETWEEN -100 AND 100 THEN 'priority must lie in -100 to 100'
        WHEN NEW.max_attempts < 1 THEN 'max_attempts must be 1 or more'
        WHEN moment NOT BETWEEN '0001-01-02 UTC' AND '9999-12-30 UTC' THEN 'created_at must lie in the years 1 to 9999'
        WHEN NEW.available_at NOT BETWEEN '0001-01-02 UTC' AND '9999-12-30 UTC'
        THEN 'available_at must lie in the years 1 to 9999'
        WHEN NEW.delay_seconds NOT BETWEEN 0 AND 3155760000 THEN 'delay_seconds must lie in 0 to 100 years'
        WHEN NEW.dedupe_seconds <= 0 OR NEW.dedupe_seconds > 3155760000
        THEN 'dedupe_seconds must be greater than 0, and at most 100 years'
    END;
    IF problem IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'check_violation', MESSAGE = 'penstock_outbox: ' || problem;
    END IF;
    IF NEW.dedupe_key IS NOT NULL THEN
        INSERT INTO penstock_dedupe AS d (queue, dedupe_key, event_id, expires_at)
        VALUES (NEW.queue, NEW.dedupe_key, NEW.event_id,
                moment + coalesce(NEW.dedupe_seconds, 86400) * interval '1 second')
        ON CONFLICT (queue, dedupe_key) DO UPDATE
        SET event_id = excluded.event_id, expires_at = excluded.expires_at WHERE d.expires_at <= moment;
        IF NOT FOUND THEN
            RETURN NULL;
        END IF;
    END IF;
    IF NEW.ordering_key IS NOT NULL THEN
        PERFORM penstock_hold_keys(NEW.queue, ARRAY[NEW.ordering_key], moment);
    END IF;
    INSERT INTO penstock_events (event_id, event_type, payload, headers, partition_key, ordering_key, created_at)
    VALUES (NEW.event_id, NEW.event_type, coalesce(NEW.payload, ''), NEW.headers, NEW.partition_key, NEW.ordering_key, moment)
    RETURNING seq INTO number;
    INSERT INTO penstock_pending (seq, queue, ordering_key, priority, attempts, deliveries, max_attempts, replays, suspect,
                                  available_at, last_error)
    VALUES (number, NEW.queue, NEW.ordering_key, coalesce(NEW.priority, 0), 0, 0, NEW.max_attempts, 0, 0,
            coalesce(NEW.available_at, moment + coalesce(NEW.delay_seconds, 0) * interval '1 second'), NULL);
    NEW.seq := number;
    RETURN NEW;
END $$;

-- Pending events that made every claim of their queue fail, or that no claim found.
CREATE TEMPORARY TABLE penstock_unreadable ON COMMIT DROP AS
SELECT seq, queue, ordering_key, 'emitted by plain SQL with ' || concat_ws(' and ',
           CASE WHEN NOT readable_time THEN 'a time outside the years 1 to 9999' END,
           CASE WHEN NOT readable_headers THEN 'headers that are no JSON object of strings' END) AS error
FROM (
    SELECT p.seq, p.queue, p.ordering_key,
           p.available_at BETWEEN '0001-01-02 UTC' AND '9999-12-30 UTC'
               AND e.created_at BETWEEN '0001-01-02 UTC' AND '9999-12-30 UTC' AS readable_time,
           e.headers IS NULL OR jsonb_typeof(e.headers) = 'object'
               AND NOT jsonb_path_exists(e.headers, 'strict $.* ? (@.type() <> "string")', '{}', true) AS readable_headers
    FROM penstock_pending p JOIN penstock_events e ON e.seq = p.seq
) looked_at
WHERE NOT (readable_time AND readable_headers);

INSERT INTO penstock_history (seq, at, what, attempts, lease_id, by, detail)
SELECT p.seq, clock_timestamp(), 'died', p.attempts, NULL, 'penstock init', u.error
FROM penstock_unreadable u JOIN penstock_pending p ON p.seq = u.seq;

WITH gone AS (
    DELETE FROM penstock_pending p USING penstock_unreadable u WHERE p.seq = u.seq RETURNING p.*, u.error
)
INSERT INTO penstock_archive (seq, queue, ordering_key, priority, attempts, deliveries, max_attempts, replays, suspect,
                              available_at, last_error, state, settled_at, lease_id)
SELECT seq, queue, ordering_key, priority, attempts, deliveries, max_attempts, replays, suspect, clock_timestamp(), error,
       'DEAD', clock_timestamp(), NULL
FROM gone;

-- A dead letter can be looked at and replayed: it keeps its headers as a text, and times that can be read.
UPDATE penstock_events e
SET created_at = CASE WHEN e.created_at BETWEEN '0001-01-02 UTC' AND '9999-12-30 UTC' THEN e.created_at
                      ELSE clock_timestamp() END,
    headers = CASE WHEN jsonb_typeof(e.headers) = 'object'
                        AND NOT jsonb_path_exists(e.headers, 'strict $.* ? (@.type() <> "string")', '{}', true) THEN e.headers
                   WHEN e.headers IS NOT NULL THEN jsonb_build_object('penstock-unreadable-headers', CAST(e.headers AS text))
              END
FROM penstock_unreadable u WHERE e.seq = u.seq;

UPDATE penstock_keys k SET next_at = clock_timestamp()
FROM penstock_unreadable u WHERE k.queue = u.queue AND k.ordering_key = u.ordering_key AND k.lease_id IS NULL;
