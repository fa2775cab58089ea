"""The store on object storage: the queue in one document, written by compare-and-swap, with one broker at a time.

values     what the document holds: entries, leases, lines of history; all of them of JSON's types
model      the queue in memory, with the indexes that claims need; copied before it is changed
emitting, claiming, settling, keeping, steering, looking    the verbs: functions over a model and a time
choosing   selections over a model
archive    settled events in segments of their own, outside the document
bucket, address    reading and swapping objects: obstore's stores, or a folder; and the URLs of both
commit     group commit: what arrives while a write is under way goes out together in the next one
broker, client     one process serves the others over HTTP
runtime    who carries out a verb: this process, or the broker, wherever it is now
opened, store      the verbs as `penstock.store.base.Store` promises them; wire and parts are their other halves
"""

from penstock.store.objects.store import ObjectStore

__all__ = ["ObjectStore"]
