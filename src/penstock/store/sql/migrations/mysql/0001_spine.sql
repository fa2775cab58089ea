-- The spine: events, their states, leases, ordering keys, dedupe windows, history, relays.

-- MySQL and MariaDB commit each DDL statement by itself, so each can be repeated: an interrupted step runs again from
-- its beginning. The runner replaces {collation} with the server's name for the collation that compares names byte by
-- byte, trailing spaces included. Times are in UTC.

CREATE TABLE IF NOT EXISTS penstock_events (
    seq           BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    event_id      BINARY(16) NOT NULL,
    event_type    VARCHAR(255) NOT NULL,
    payload       LONGBLOB NOT NULL,
    headers       JSON,
    partition_key VARCHAR(255),
    ordering_key  VARCHAR(255),
    created_at    DATETIME(6) NOT NULL,
    -- A copy has an id of its own, which nobody sees, and its origin's, under which it is delivered and found.
    origin        BINARY(16),
    UNIQUE KEY penstock_events_event_id (event_id),
    KEY penstock_events_origin (origin)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE {collation};

-- There are no partial indexes here: events without a key are those with NULL in its place.
CREATE TABLE IF NOT EXISTS penstock_pending (
    seq          BIGINT NOT NULL PRIMARY KEY,
    queue        VARCHAR(255) NOT NULL,
    ordering_key VARCHAR(255),
    priority     SMALLINT NOT NULL,
    attempts     INTEGER NOT NULL,
    deliveries   INTEGER NOT NULL,
    max_attempts INTEGER,
    replays      INTEGER NOT NULL,
    suspect      SMALLINT NOT NULL,
    available_at DATETIME(6) NOT NULL,
    last_error   LONGTEXT,
    KEY penstock_pending_ready (queue, ordering_key, priority, available_at, seq),
    KEY penstock_pending_line (queue, ordering_key, seq)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE {collation};

CREATE TABLE IF NOT EXISTS penstock_claimed (
    seq          BIGINT NOT NULL PRIMARY KEY,
    queue        VARCHAR(255) NOT NULL,
    ordering_key VARCHAR(255),
    priority     SMALLINT NOT NULL,
    attempts     INTEGER NOT NULL,
    deliveries   INTEGER NOT NULL,
    max_attempts INTEGER,
    replays      INTEGER NOT NULL,
    suspect      SMALLINT NOT NULL,
    available_at DATETIME(6) NOT NULL,
    last_error   LONGTEXT,
    lease_id     BINARY(16) NOT NULL,
    KEY penstock_claimed_lease (lease_id, ordering_key)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE {collation};

CREATE TABLE IF NOT EXISTS penstock_archive (
    seq          BIGINT NOT NULL PRIMARY KEY,
    queue        VARCHAR(255) NOT NULL,
    ordering_key VARCHAR(255),
    priority     SMALLINT NOT NULL,
    attempts     INTEGER NOT NULL,
    deliveries   INTEGER NOT NULL,
    max_attempts INTEGER,
    replays      INTEGER NOT NULL,
    suspect      SMALLINT NOT NULL,
    available_at DATETIME(6) NOT NULL,
    last_error   LONGTEXT,
    state        VARCHAR(9) NOT NULL,
    settled_at   DATETIME(6) NOT NULL,
    lease_id     BINARY(16),
    CONSTRAINT penstock_archive_state CHECK (state IN ('PUBLISHED', 'DEAD')),
    KEY penstock_archive_dead (state, queue, seq)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE {collation};

CREATE TABLE IF NOT EXISTS penstock_leases (
    lease_id     BINARY(16) NOT NULL PRIMARY KEY,
    queue        VARCHAR(255) NOT NULL,
    claimant     LONGTEXT NOT NULL,
    token        BINARY(16) NOT NULL,
    claims       INTEGER NOT NULL,
    moved        BOOLEAN NOT NULL,
    max_attempts INTEGER NOT NULL,
    claimed_at   DATETIME(6) NOT NULL,
    expires_at   DATETIME(6) NOT NULL,
    closed_at    DATETIME(6),
    -- The open ones by their end, and the closed ones by their age.
    KEY penstock_leases_open (closed_at, expires_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE {collation};

CREATE TABLE IF NOT EXISTS penstock_keys (
    queue        VARCHAR(255) NOT NULL,
    ordering_key VARCHAR(255) NOT NULL,
    next_at      DATETIME(6) NOT NULL,
    lease_id     BINARY(16),
    PRIMARY KEY (queue, ordering_key),
    KEY penstock_keys_ready (queue, lease_id, next_at),
    KEY penstock_keys_lease (lease_id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE {collation};

-- A second row for each key, which emitters share until they commit: nobody deletes the key meanwhile, and its claimers
-- need not wait for them.
CREATE TABLE IF NOT EXISTS penstock_holds (
    queue        VARCHAR(255) NOT NULL,
    ordering_key VARCHAR(255) NOT NULL,
    PRIMARY KEY (queue, ordering_key)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE {collation};

CREATE TABLE IF NOT EXISTS penstock_dedupe (
    queue      VARCHAR(255) NOT NULL,
    dedupe_key VARCHAR(255) NOT NULL,
    event_id   BINARY(16) NOT NULL,
    expires_at DATETIME(6) NOT NULL,
    PRIMARY KEY (queue, dedupe_key),
    KEY penstock_dedupe_expiry (expires_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE {collation};

CREATE TABLE IF NOT EXISTS penstock_history (
    id       BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    seq      BIGINT NOT NULL,
    at       DATETIME(6) NOT NULL,
    what     LONGTEXT NOT NULL,
    attempts INTEGER NOT NULL,
    lease_id BINARY(16),
    `by`     LONGTEXT,
    detail   LONGTEXT,
    KEY penstock_history_seq (seq, id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE {collation};

CREATE TABLE IF NOT EXISTS penstock_relays (
    relay_id    BINARY(16) NOT NULL PRIMARY KEY,
    queue       VARCHAR(255) NOT NULL,
    destination LONGTEXT NOT NULL,
    host        LONGTEXT NOT NULL,
    started_at  DATETIME(6) NOT NULL,
    seen_at     DATETIME(6) NOT NULL,
    stopping    BOOLEAN NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE {collation};
