"""Publisher for Apache Kafka."""
