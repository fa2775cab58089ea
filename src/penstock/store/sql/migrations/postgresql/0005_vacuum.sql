-- Vacuum: autovacuum settings for the tables that had none.

-- penstock_pending, penstock_claimed, penstock_leases, penstock_keys and penstock_staged are vacuumed every 5,000 dead
-- rows since 0001 and 0003. The tables below may be large, and a vacuum reads all of their indexes: so by share, but at
-- 2 % instead of the server's 20 %. Rows of the first three are deleted by purges, in bulk; between purges rows are
-- only inserted, and more frequent insert vacuums leave fewer pages to freeze at once.

ALTER TABLE penstock_events SET (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.02
);

ALTER TABLE penstock_archive SET (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.02
);

ALTER TABLE penstock_history SET (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.02
);

-- Every window is deleted or opened again after its time.
ALTER TABLE penstock_dedupe SET (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0
);

-- Each report of progress updates a row. No index covers the updated columns, so with free space in the page the update
-- adds no index entry, and the old version is removed without a vacuum.
ALTER TABLE penstock_notes SET (
    fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000
);
