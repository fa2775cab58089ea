-- Staging: rows that tasks have written and no commit has made events yet, and how far each stream has come.

-- What the tasks of a write have brought, until its commit makes events of it.
CREATE TABLE penstock_staged (
    write_id       CHAR(32) NOT NULL,
    batch_id       BIGINT NOT NULL,
    place          INTEGER NOT NULL,
    part_id        CHAR(32) NOT NULL,
    number         BIGINT NOT NULL,
    event_id       CHAR(32) NOT NULL,
    event_type     TEXT NOT NULL,
    queue          TEXT NOT NULL,
    payload        BLOB NOT NULL,
    headers        JSON,
    partition_key  TEXT,
    ordering_key   TEXT,
    priority       SMALLINT NOT NULL,
    max_attempts   INTEGER,
    available_at   BIGINT,
    delay_seconds  DOUBLE,
    dedupe_key     TEXT,
    dedupe_seconds DOUBLE NOT NULL,
    staged_at      BIGINT NOT NULL,
    -- In the order in which a batch becomes events.
    PRIMARY KEY (write_id, batch_id, place, part_id, number)
);

-- The last batch of each streaming query that became events.
CREATE TABLE penstock_sinks (
    query_id     CHAR(32) PRIMARY KEY NOT NULL,
    batch_id     BIGINT NOT NULL,
    committed_at BIGINT NOT NULL
);
