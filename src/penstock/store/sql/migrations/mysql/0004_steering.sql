-- Steering: queues that are paused or limited, and what handlers say of their events.

-- Queues that somebody has paused or limited, or from whose archive published events were purged: how many.
CREATE TABLE IF NOT EXISTS penstock_queues (
    queue       VARCHAR(255) NOT NULL PRIMARY KEY,
    paused_at   DATETIME(6),
    paused_by   LONGTEXT,
    max_claimed INTEGER,
    purged      BIGINT NOT NULL DEFAULT 0,
    CONSTRAINT penstock_queues_limit CHECK (max_claimed > 0)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE {collation};

-- What a handler said of an event: how far it has come, and what came of it.
CREATE TABLE IF NOT EXISTS penstock_notes (
    seq      BIGINT NOT NULL PRIMARY KEY,
    progress LONGBLOB,
    result   LONGBLOB,
    noted_at DATETIME(6) NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC CHARACTER SET utf8mb4 COLLATE {collation};
