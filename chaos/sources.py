"""Sources of the orders: a queue, files that Spark reads as a DataFrame, Valkey and Kafka."""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from chaos.orders import Order
from penstock.outbox import connect
from tests.support.files import write_whole
from tests.support.servers import KafkaServer, PostgresServer, Server, ValkeyServer

ORDERS = "orders"
GROUP = "penstock"
PARTITIONS = 3


class OrderSource(ABC):
    """A source to which a trial writes orders."""

    @property
    @abstractmethod
    def named(self) -> dict[str, str]:
        """Kind, names and addresses of the source, for the settings of the program."""

    @abstractmethod
    def emit(self, orders: Sequence[Order]) -> None:
        """Write orders to the source. Return when the orders are stored."""

    def unacknowledged(self) -> int:
        """Return the source's own count of unacknowledged orders; 0 if it keeps none. `Books.live` counts queues."""
        return 0


class QueueSource(OrderSource):
    """A Penstock queue. Each emit opens a new connection, because the database may have restarted since the last."""

    def __init__(self, store: str) -> None:
        self._store = store

    @property
    def named(self) -> dict[str, str]:
        return {"kind": "queue", "queue": ORDERS}

    def emit(self, orders: Sequence[Order]) -> None:
        with connect(self._store) as outbox:
            outbox.emit_many(outbox.event("order", order.document(), queue=ORDERS) for order in orders)


class FolderSource(OrderSource):
    """JSON files that Spark reads as a streaming DataFrame."""

    def __init__(self, folder: Path, kind: str) -> None:
        self._kind = kind
        self._folder = folder / "arriving"
        self._folder.mkdir()

    @property
    def named(self) -> dict[str, str]:
        return {"kind": self._kind, "folder": str(self._folder)}

    def emit(self, orders: Sequence[Order]) -> None:
        rows = [{"event_id": f"order {order.number}", **order.document()} for order in orders]
        write_whole(self._folder / f"{orders[0].number}.json", "".join(json.dumps(row) + "\n" for row in rows))


class ValkeySource(OrderSource):
    """A Valkey stream."""

    def __init__(self, server: ValkeyServer, stream: str) -> None:
        import valkey

        self._url = server.url()
        self._stream = stream
        self._client: Any = valkey.Valkey(port=server.port)

    @property
    def named(self) -> dict[str, str]:
        return {"kind": "valkey", "url": self._url, "stream": self._stream}

    def emit(self, orders: Sequence[Order]) -> None:
        pipeline = self._client.pipeline(transaction=False)
        for order in orders:
            pipeline.xadd(self._stream, {"payload": json.dumps(order.document())})
        pipeline.execute()

    def unacknowledged(self) -> int:
        groups: list[Any] = self._client.xinfo_groups(self._stream)
        found = next((group for group in groups if group["name"] == GROUP.encode()), None)
        return 1 if found is None else int(found["pending"]) + int(found["lag"] or 0)

    def close(self) -> None:
        self._client.close()


class KafkaSource(OrderSource):
    """A Kafka topic with several partitions."""

    def __init__(self, server: KafkaServer, topic: str) -> None:
        from confluent_kafka import Producer
        from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

        self._servers = f"127.0.0.1:{server.port}"
        self._topic = topic
        at: dict[str, Any] = {"bootstrap.servers": self._servers, "log_level": 0}
        admin = AdminClient(at)
        for done in admin.create_topics([NewTopic(topic, PARTITIONS, 1)]).values():
            done.result()
        self._producer = Producer({**at, "enable.idempotence": True})

    @property
    def named(self) -> dict[str, str]:
        return {"kind": "kafka", "servers": self._servers, "topic": self._topic}

    def emit(self, orders: Sequence[Order]) -> None:
        for order in orders:
            self._producer.produce(self._topic, json.dumps(order.document()), key=order.key)
            self._producer.poll(0)
        self._producer.flush()


class SourceServers:
    """Servers of the sources. Each server is started when the first source needs it."""

    def __init__(self, postgres: PostgresServer) -> None:
        self.postgres = postgres
        self._started: dict[str, Server] = {}

    def source(self, kind: str, store: str, folder: Path) -> AbstractContextManager[OrderSource]:
        """Open a new, empty source of a kind."""
        if kind in FOLDERS:
            return nullcontext(FolderSource(folder, kind))
        return {"queue": self._queue, "valkey": self._valkey, "kafka": self._kafka}[kind](store, folder)

    def close(self) -> None:
        for server in self._started.values():
            server.close()

    @contextmanager
    def _queue(self, store: str, _: Path) -> Iterator[OrderSource]:
        yield QueueSource(store)

    @contextmanager
    def _valkey(self, _: str, folder: Path) -> Iterator[OrderSource]:
        server = self._started.setdefault("valkey", ValkeyServer(fsync=False))
        server.start()
        assert isinstance(server, ValkeyServer)
        with closing(ValkeySource(server, f"orders-{folder.name}")) as source:
            yield source

    @contextmanager
    def _kafka(self, _: str, folder: Path) -> Iterator[OrderSource]:
        server = self._started.setdefault("kafka", KafkaServer(fsync=False))
        server.start()
        assert isinstance(server, KafkaServer)
        yield KafkaSource(server, f"orders-{folder.name}")


FOLDERS = ("dataframe", "batches")
"""Sources that read the same files: for a handler of single events, and for a batch handler."""
SOURCES = ("queue", *FOLDERS, "valkey", "kafka")
