-- The spine: events, their states, leases, ordering keys, dedupe windows, history, relays.

-- Times are microseconds since 1970, ids are text of 32 hexadecimal digits.
CREATE TABLE penstock_events (
    seq           INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    event_id      CHAR(32) NOT NULL,
    event_type    TEXT NOT NULL,
    payload       BLOB NOT NULL,
    headers       JSON,
    partition_key TEXT,
    ordering_key  TEXT,
    created_at    BIGINT NOT NULL,
    UNIQUE (event_id)
);

CREATE TABLE penstock_pending (
    seq          INTEGER NOT NULL PRIMARY KEY,
    queue        TEXT NOT NULL,
    ordering_key TEXT,
    priority     SMALLINT NOT NULL,
    attempts     INTEGER NOT NULL,
    deliveries   INTEGER NOT NULL,
    max_attempts INTEGER,
    replays      INTEGER NOT NULL,
    suspect      SMALLINT NOT NULL,
    available_at BIGINT NOT NULL,
    last_error   TEXT
);

CREATE INDEX penstock_pending_ready ON penstock_pending (queue, priority DESC, available_at, seq) WHERE ordering_key IS NULL;

CREATE INDEX penstock_pending_line ON penstock_pending (queue, ordering_key, seq) WHERE ordering_key IS NOT NULL;

CREATE TABLE penstock_claimed (
    seq          INTEGER NOT NULL PRIMARY KEY,
    queue        TEXT NOT NULL,
    ordering_key TEXT,
    priority     SMALLINT NOT NULL,
    attempts     INTEGER NOT NULL,
    deliveries   INTEGER NOT NULL,
    max_attempts INTEGER,
    replays      INTEGER NOT NULL,
    suspect      SMALLINT NOT NULL,
    available_at BIGINT NOT NULL,
    last_error   TEXT,
    lease_id     CHAR(32) NOT NULL
);

CREATE INDEX penstock_claimed_lease ON penstock_claimed (lease_id, ordering_key);

CREATE TABLE penstock_archive (
    seq          INTEGER NOT NULL PRIMARY KEY,
    queue        TEXT NOT NULL,
    ordering_key TEXT,
    priority     SMALLINT NOT NULL,
    attempts     INTEGER NOT NULL,
    deliveries   INTEGER NOT NULL,
    max_attempts INTEGER,
    replays      INTEGER NOT NULL,
    suspect      SMALLINT NOT NULL,
    available_at BIGINT NOT NULL,
    last_error   TEXT,
    state        TEXT NOT NULL CHECK (state IN ('PUBLISHED', 'DEAD')),
    settled_at   BIGINT NOT NULL,
    lease_id     CHAR(32)
);

CREATE INDEX penstock_archive_dead ON penstock_archive (queue, seq) WHERE state = 'DEAD';

CREATE TABLE penstock_leases (
    lease_id     CHAR(32) PRIMARY KEY NOT NULL,
    queue        TEXT NOT NULL,
    claimant     TEXT NOT NULL,
    token        CHAR(32) NOT NULL,
    claims       INTEGER NOT NULL,
    moved        BOOLEAN NOT NULL,
    max_attempts INTEGER NOT NULL,
    claimed_at   BIGINT NOT NULL,
    expires_at   BIGINT NOT NULL,
    closed_at    BIGINT
);

CREATE INDEX penstock_leases_open ON penstock_leases (expires_at) WHERE closed_at IS NULL;

CREATE INDEX penstock_leases_closed ON penstock_leases (closed_at) WHERE closed_at IS NOT NULL;

CREATE TABLE penstock_keys (
    queue        TEXT NOT NULL,
    ordering_key TEXT NOT NULL,
    next_at      BIGINT NOT NULL,
    lease_id     CHAR(32),
    PRIMARY KEY (queue, ordering_key)
);

CREATE INDEX penstock_keys_ready ON penstock_keys (queue, next_at) WHERE lease_id IS NULL;

CREATE INDEX penstock_keys_lease ON penstock_keys (lease_id) WHERE lease_id IS NOT NULL;

CREATE TABLE penstock_dedupe (
    queue      TEXT NOT NULL,
    dedupe_key TEXT NOT NULL,
    event_id   CHAR(32) NOT NULL,
    expires_at BIGINT NOT NULL,
    PRIMARY KEY (queue, dedupe_key)
);

CREATE INDEX penstock_dedupe_expiry ON penstock_dedupe (expires_at);

CREATE TABLE penstock_history (
    id       INTEGER NOT NULL PRIMARY KEY,
    seq      BIGINT NOT NULL,
    at       BIGINT NOT NULL,
    what     TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    lease_id CHAR(32),
    "by"     TEXT,
    detail   TEXT
);

CREATE INDEX penstock_history_seq ON penstock_history (seq, id);

CREATE TABLE penstock_relays (
    relay_id    CHAR(32) PRIMARY KEY NOT NULL,
    queue       TEXT NOT NULL,
    destination TEXT NOT NULL,
    host        TEXT NOT NULL,
    started_at  BIGINT NOT NULL,
    seen_at     BIGINT NOT NULL,
    stopping    BOOLEAN NOT NULL
);

CREATE VIEW penstock_outbox AS
SELECT e.seq, e.event_id, e.event_type, s.queue, s.state, e.payload, e.headers, e.partition_key, e.ordering_key,
       s.priority, s.attempts, s.deliveries, s.max_attempts, s.replays, s.suspect, s.last_error,
       e.created_at, s.available_at, s.claimed_at, s.claimed_by, s.lease_expires_at,
       CASE s.state WHEN 'PUBLISHED' THEN s.settled_at END AS published_at, s.settled_at,
       NULL AS dedupe_key, NULL AS dedupe_seconds, NULL AS delay_seconds
FROM penstock_events e
JOIN (
    SELECT seq, queue, 'PENDING' AS state, priority, attempts, deliveries, max_attempts, replays, suspect, last_error,
           available_at, NULL AS claimed_at, NULL AS claimed_by, NULL AS lease_expires_at, NULL AS settled_at
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

-- Emitting by plain SQL: INSERT INTO penstock_outbox (event_type, payload, ...). SQLite's one writer at a time
-- is all the locking that ordering keys and the dedupe window need, and makes the last event the one just emitted.
CREATE TRIGGER penstock_emit INSTEAD OF INSERT ON penstock_outbox
BEGIN
    SELECT RAISE(IGNORE) FROM penstock_dedupe d
    WHERE d.queue = coalesce(NEW.queue, 'outbox') AND d.dedupe_key = NEW.dedupe_key
      AND d.expires_at > coalesce(NEW.created_at, CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER));
    INSERT INTO penstock_events (event_id, event_type, payload, headers, partition_key, ordering_key, created_at)
    VALUES (coalesce(
                lower(replace(NEW.event_id, '-', '')),
                -- A random UUID: its digits, with the version and the variant in their places.
                lower(hex(randomblob(6)) || '4' || substr(hex(randomblob(2)), 2)
                      || substr('89ab', 1 + (random() & 3), 1) || substr(hex(randomblob(8)), 2))),
            NEW.event_type, CAST(coalesce(NEW.payload, x'') AS BLOB), NEW.headers, NEW.partition_key, NEW.ordering_key,
            coalesce(NEW.created_at, CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)));
    INSERT INTO penstock_pending (seq, queue, ordering_key, priority, attempts, deliveries, max_attempts, replays, suspect,
                                  available_at, last_error)
    SELECT e.seq, coalesce(NEW.queue, 'outbox'), NEW.ordering_key, coalesce(NEW.priority, 0), 0, 0, NEW.max_attempts, 0, 0,
           coalesce(NEW.available_at, e.created_at + CAST(coalesce(NEW.delay_seconds, 0) * 1000000 AS INTEGER)), NULL
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
