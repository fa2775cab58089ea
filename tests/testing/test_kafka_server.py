"""The Kafka test server keeps its data over a crash, cleans up, and reports missing software."""

from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from penstock.model.errors import MissingDriver
from tests.support.installations import find_kafka
from tests.support.processes import ServerFailed, living
from tests.support.servers import KafkaServer

pytestmark = pytest.mark.crash


def keep(server: KafkaServer, text: str) -> None:
    producer = Producer({"bootstrap.servers": f"127.0.0.1:{server.port}", "log_level": 0})
    producer.produce("kept", text)
    assert producer.flush(30) == 0


def kept(server: KafkaServer) -> int:
    consumer = Consumer({"bootstrap.servers": f"127.0.0.1:{server.port}", "group.id": "kept", "log_level": 0})
    _, end = consumer.get_watermark_offsets(TopicPartition("kept", 0), timeout=30)
    consumer.close()
    return int(end)


def test_kafka_server_recovers_after_kill_and_cleans_up(kafka_server: KafkaServer) -> None:
    with KafkaServer(fsync=False) as server:
        keep(server, "before the kill")
        port, folder = server.port, server.folder
        server.kill()
        assert not server.running
        server.start()
        assert server.port == port
        keep(server, "after the kill")
        assert kept(server) == 2
        pid = server.pid
    assert pid not in living()
    assert not folder.exists()


def test_failed_start_shows_log_and_leaves_no_process(kafka_server: KafkaServer) -> None:
    server = KafkaServer(settings={"num.partitions": "many"})
    with pytest.raises(ServerFailed, match=r"num\.partitions"):
        server.start()
    assert not server.running


def test_missing_kafka_jars_error_names_command(tmp_path: Path) -> None:
    with pytest.raises(MissingDriver, match="make services"):
        find_kafka(tmp_path)


def test_newest_complete_kafka_version_is_used(tmp_path: Path) -> None:
    for version in ("4.9.0", "4.10.0", "4.11.0"):
        (tmp_path / f"kafka-{version}").mkdir()
    for version in ("4.9.0", "4.10.0"):
        (tmp_path / f"kafka-{version}" / f"kafka_2.13-{version}.jar").touch()
    assert find_kafka(tmp_path).name == "kafka-4.10.0"
