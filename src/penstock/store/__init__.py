"""Stores, where events live. `penstock.store.registry` opens the one that a URL names."""
