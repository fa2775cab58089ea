"""The store on object storage: all queues in one document, written by compare-and-swap by one broker at a time.

document         events, leases and bookkeeping as immutable rows, with indexes for claims
operations/      changes and queries: functions of a document and of the time
bucket, address  object stores and folders, and their URLs
blobs            long payloads, results and progress, each in a separate object
group_commit     the committing thread: changes that arrive during a write share the next one
server, client   the broker's HTTP server and its clients
leadership       where an operation runs: in this process, or at the broker
store, codec     the interface of `penstock.store.api.Store`, and the conversion of its values
"""
