"""Source of streams: topics of Apache Kafka."""
