"""Publisher for NATS JetStream."""
