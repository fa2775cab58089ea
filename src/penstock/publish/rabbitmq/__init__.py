"""Publisher for RabbitMQ."""
