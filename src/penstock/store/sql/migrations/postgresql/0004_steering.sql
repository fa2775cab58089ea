-- Steering: queues that are paused or limited, and what handlers say of their events.

-- Queues that somebody has paused or limited, or from whose archive published events were purged: how many.
CREATE TABLE penstock_queues (
    queue       text NOT NULL PRIMARY KEY,
    paused_at   timestamptz,
    paused_by   text,
    max_claimed integer CHECK (max_claimed > 0),
    purged      bigint NOT NULL DEFAULT 0
);

-- What a handler said of an event: how far it has come, and what came of it.
CREATE TABLE penstock_notes (
    seq      bigint NOT NULL PRIMARY KEY,
    progress bytea,
    result   bytea,
    noted_at timestamptz NOT NULL
);
