-- Staging: rows that tasks have written and no commit has made events yet, and how far each stream has come.

-- What the tasks of a write have brought, until its commit makes events of it. Not logged: if the server crashes, the
-- commit finds rows missing and refuses, and the write is run again.
CREATE UNLOGGED TABLE penstock_staged (
    write_id       uuid NOT NULL,
    batch_id       bigint NOT NULL,
    place          integer NOT NULL,
    part_id        uuid NOT NULL,
    number         bigint NOT NULL,
    event_id       uuid NOT NULL,
    event_type     text NOT NULL,
    queue          text NOT NULL,
    payload        bytea NOT NULL,
    headers        jsonb,
    partition_key  text,
    ordering_key   text,
    priority       smallint NOT NULL,
    max_attempts   integer,
    available_at   timestamptz,
    delay_seconds  double precision,
    dedupe_key     text,
    dedupe_seconds double precision NOT NULL,
    staged_at      timestamptz NOT NULL,
    -- In the order in which a batch becomes events.
    PRIMARY KEY (write_id, batch_id, place, part_id, number)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);

-- The last batch of each streaming query that became events.
CREATE TABLE penstock_sinks (
    query_id     uuid PRIMARY KEY,
    batch_id     bigint NOT NULL,
    committed_at timestamptz NOT NULL
);
