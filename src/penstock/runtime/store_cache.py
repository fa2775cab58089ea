"""The stores that this process has open: connections open where they are used, once, and never travel."""

from collections import OrderedDict
from threading import Lock

from penstock.store.api import Store
from penstock.store.registry import open_store

MAX_STORES = 4

_stores: OrderedDict[str, Store] = OrderedDict()
_stores_change = Lock()


def store_of(url: str) -> Store:
    """The process's own store. Of stores long unused it lets go."""
    with _stores_change:
        if url not in _stores:
            _stores[url] = open_store(url)
        _stores.move_to_end(url)
        while len(_stores) > MAX_STORES:
            _stores.popitem(last=False)[1].close()
        return _stores[url]


def close_stores() -> None:
    """Let go of the connections that reading, writing and settling have left open in this process."""
    with _stores_change:
        while _stores:
            _stores.popitem()[1].close()
