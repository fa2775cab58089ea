"""Cache of open stores: each process opens its stores lazily, once per URL, and never pickles a connection."""

from collections import OrderedDict
from threading import Lock

from penstock.store.api import Store
from penstock.store.registry import open_store

MAX_STORES = 4

_stores: OrderedDict[str, Store] = OrderedDict()
_stores_change = Lock()


def store_of(url: str) -> Store:
    """Return this process's store for the URL. Close the least recently used stores beyond `MAX_STORES`."""
    with _stores_change:
        if url not in _stores:
            _stores[url] = open_store(url)
        _stores.move_to_end(url)
        while len(_stores) > MAX_STORES:
            _stores.popitem(last=False)[1].close()
        return _stores[url]


def close_stores() -> None:
    """Close all stores that this process has cached."""
    with _stores_change:
        while _stores:
            _stores.popitem()[1].close()
