"""The store on object storage: the queue in one document, written by compare-and-swap, with one broker at a time.

values   what the document holds: entries, leases, lines of history; all of them JSON's types
model    the queue in memory, with the indexes that claims need; copied before it is changed
emitting, claiming, settling, keeping, steering, looking   the verbs: functions over a model, without I/O
archive  settled events in segments of their own, outside the document
bucket   reading and swapping objects: obstore's stores, or a folder
commit   group commit: what arrives while a write is under way goes out together in the next one
broker, client   one process serves the others over HTTP; whoever lost it looks for the next, or takes over
store    the verbs as `penstock.store.base.Store` promises them
"""

from penstock.store.objects.store import ObjectStore

__all__ = ["ObjectStore"]
