"""Source of streams: Apache Kafka topics."""
