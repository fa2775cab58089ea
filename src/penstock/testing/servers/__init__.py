"""Real servers for tests and benchmarks: on free ports, in temporary folders, and gone afterwards.

    with PostgresServer(fsync=False) as server:
        url = server.create_database()

A server keeps its data and its port over `stop`, `kill` and `start`, until `close` or the end of the `with`.
None outlives the process that started it, not even after a SIGKILL: a `Guard` sees to that.
"""

from penstock.testing.servers.base import Server
from penstock.testing.servers.kafka import KafkaServer
from penstock.testing.servers.mariadb import MariadbServer
from penstock.testing.servers.nats import NatsServer
from penstock.testing.servers.pgbouncer import PgBouncer
from penstock.testing.servers.postgres import PostgresServer
from penstock.testing.servers.rabbitmq import RabbitServer
from penstock.testing.servers.s3 import S3Server
from penstock.testing.servers.spark import SparkMaster, SparkWorker
from penstock.testing.servers.valkey import ValkeyServer

__all__ = [
    "KafkaServer",
    "MariadbServer",
    "NatsServer",
    "PgBouncer",
    "PostgresServer",
    "RabbitServer",
    "S3Server",
    "Server",
    "SparkMaster",
    "SparkWorker",
    "ValkeyServer",
]
