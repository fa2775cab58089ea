"""Find the source of a stream. The Valkey source needs a client library and is imported only if a stream reads it."""

from importlib import import_module

from penstock.pipeline.streams.sources.base import SparkSource
from penstock.pipeline.streams.sources.dataframe import DataFrameSource
from penstock.pipeline.streams.sources.kafka.source import KafkaSource
from penstock.pipeline.streams.sources.queue import QueueSource
from penstock.streams.app import Stream
from penstock.streams.sources import Frame, Kafka, Queue, Valkey


def sources_of(stream: Stream, store: str, parallelism: int) -> "tuple[SparkSource] | tuple[SparkSource, SparkSource]":
    """Return the reader of a stream's source and, beside a source without settlement, of the stream's retry queue."""
    own = QueueSource(stream, store, stream.own_queue, 1)
    match stream.source:
        case Queue(name):
            source = QueueSource(stream, store, name, parallelism)
            return (source, own) if stream.has_timers else (source,)  # failed timers go there
        case Frame() as frame:
            return DataFrameSource(frame), own
        case Valkey() as valkey:
            module = import_module("penstock.pipeline.streams.sources.valkey.source")
            return module.ValkeySource(valkey, stream.name), own
        case Kafka() as kafka:
            return KafkaSource(kafka), own
