-- Staging: rows that tasks have written and no commit has made events yet, and how far each stream has come.

-- What the tasks of a write have brought, until its commit makes events of it.
CREATE TABLE IF NOT EXISTS penstock_staged (
    write_id       BINARY(16) NOT NULL,
    batch_id       BIGINT NOT NULL,
    place          INTEGER NOT NULL,
    part_id        BINARY(16) NOT NULL,
    number         BIGINT NOT NULL,
    event_id       BINARY(16) NOT NULL,
    event_type     VARCHAR(255) NOT NULL,
    queue          VARCHAR(255) NOT NULL,
    payload        LONGBLOB NOT NULL,
    headers        JSON,
    partition_key  VARCHAR(255),
    ordering_key   VARCHAR(255),
    priority       SMALLINT NOT NULL,
    max_attempts   INTEGER,
    available_at   DATETIME(6),
    delay_seconds  DOUBLE,
    dedupe_key     VARCHAR(255),
    dedupe_seconds DOUBLE NOT NULL,
    staged_at      DATETIME(6) NOT NULL,
    -- In the order in which a batch becomes events.
    PRIMARY KEY (write_id, batch_id, place, part_id, number)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE {collation};

-- The last batch of each streaming query that became events.
CREATE TABLE IF NOT EXISTS penstock_sinks (
    query_id     BINARY(16) NOT NULL PRIMARY KEY,
    batch_id     BIGINT NOT NULL,
    committed_at DATETIME(6) NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE {collation};
