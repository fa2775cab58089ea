-- Steering: queues that are paused or limited, and what handlers say of their events.

-- Queues that somebody has paused or limited, or from whose archive published events were purged: how many.
CREATE TABLE penstock_queues (
    queue       TEXT NOT NULL PRIMARY KEY,
    paused_at   BIGINT,
    paused_by   TEXT,
    max_claimed INTEGER CHECK (max_claimed > 0),
    purged      BIGINT NOT NULL DEFAULT 0
);

-- What a handler said of an event: how far it has come, and what came of it.
CREATE TABLE penstock_notes (
    seq      INTEGER NOT NULL PRIMARY KEY,
    progress BLOB,
    result   BLOB,
    noted_at BIGINT NOT NULL
);
