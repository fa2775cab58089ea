-- No staging: exactly-once writes from Spark need PostgreSQL or SQLite.

DROP TABLE IF EXISTS penstock_staged;

DROP TABLE IF EXISTS penstock_sinks;
