"""Stores: the databases and buckets that hold events. `penstock.store.registry` opens the store of a URL."""
