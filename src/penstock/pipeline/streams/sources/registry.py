"""Find the source of a stream. The module of a source, and the client library that it needs, are imported here."""

from importlib import import_module
from typing import Any, cast

from penstock.pipeline.streams.sources.base import SparkSource
from penstock.pipeline.streams.sources.queue import QueueSource
from penstock.streams.app import Stream
from penstock.streams.sources import Frame, Kafka, Queue, Valkey

_PACKAGE = "penstock.pipeline.streams.sources"


def sources_of(stream: Stream, store: str, parallelism: int) -> "tuple[SparkSource] | tuple[SparkSource, SparkSource]":
    """Return the reader of a stream's source and, beside a source without settlement, of the stream's retry queue."""
    own = QueueSource(stream, store, stream.own_queue, 1)
    match stream.source:
        case Queue(name):
            source = QueueSource(stream, store, name, parallelism)
            return (source, own) if stream.has_timers else (source,)  # timers that failed are there
        case Frame() as frame:
            return _open("dataframe", "DataFrameSource", frame), own
        case Valkey() as valkey:
            return _open("valkey.source", "ValkeySource", valkey, stream.name), own
        case Kafka() as kafka:
            return _open("kafka.source", "KafkaSource", kafka), own


def _open(module: str, name: str, *given: object) -> SparkSource:
    source: Any = getattr(import_module(f"{_PACKAGE}.{module}"), name)
    return cast(SparkSource, source(*given))
