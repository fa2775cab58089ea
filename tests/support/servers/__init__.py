"""Real servers for tests and benchmarks, on free ports and in temporary folders that are removed afterwards.

    with PostgresServer(fsync=False) as server:
        url = server.create_database()

A server keeps its data and port across `stop`, `kill` and `start`, until `close` or the end of the `with` block. No
server outlives the process that started it, even after SIGKILL: a `Guard` ensures this.
"""

from tests.support.servers.base import Server
from tests.support.servers.kafka import KafkaServer
from tests.support.servers.mariadb import MariadbServer
from tests.support.servers.nats import NatsServer
from tests.support.servers.pgbouncer import PgBouncer
from tests.support.servers.postgres import PostgresServer
from tests.support.servers.rabbitmq import RabbitServer
from tests.support.servers.s3 import S3Server
from tests.support.servers.spark import SparkMaster, SparkWorker
from tests.support.servers.valkey import ValkeyServer

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
