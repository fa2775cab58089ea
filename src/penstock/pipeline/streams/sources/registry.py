"""Find the source of a stream. The module of a source, and the client library that it needs, are imported here."""

from importlib import import_module
from typing import Any, cast

from penstock.pipeline.streams.sources.base import Feed
from penstock.pipeline.streams.sources.queue import QueueFeed
from penstock.streams.app import Stream
from penstock.streams.sources import Frame, Kafka, Queue, Valkey

_PACKAGE = "penstock.pipeline.streams.sources"


def feeds_of(stream: Stream, store: str, parallelism: int) -> "tuple[Feed] | tuple[Feed, Feed]":
    """Return the reader of a stream's source and, beside a source without settlement, of the stream's retry queue."""
    own = QueueFeed(stream, store, stream.own_queue, 1)
    match stream.source:
        case Queue(name):
            feed = QueueFeed(stream, store, name, parallelism)
            return (feed, own) if stream.has_timers else (feed,)  # timers that failed are there
        case Frame() as frame:
            return _open("dataframe", "FrameFeed", frame), own
        case Valkey() as valkey:
            return _open("valkey.source", "ValkeyFeed", valkey, stream.name), own
        case Kafka() as kafka:
            return _open("kafka.source", "KafkaFeed", kafka), own


def _open(module: str, name: str, *given: object) -> Feed:
    feed: Any = getattr(import_module(f"{_PACKAGE}.{module}"), name)
    return cast(Feed, feed(*given))
