"""A Kafka broker for tests and benchmarks."""

import base64
import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

from penstock.config.extras import needs_extra
from penstock.pipeline.spark.java import find_java
from tests.support.installations import find_kafka
from tests.support.processes import free_port
from tests.support.servers.base import Server

USER = "penstock"
CLERK = "clerk"
PASSWORD = "penstock-secret"
# Test brokers live for minutes: with a small heap and only the quick compiler, a broker starts in two seconds.
JAVA_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


class KafkaServer(Server):
    """One node on 127.0.0.1, both broker and controller, open to everyone at `url()`.

    A second listener requires a user name and password; the user `penstock` has all permissions, and `clerk` has those
    that an ACL grants. A third listener uses TLS, if `openssl` is available to create its certificate. Topics are
    created on first use, unless `settings` sets `auto.create.topics.enable` to false. Acknowledged records survive a
    crash of the broker, and with `fsync=True` a crash of the machine.
    """

    name = "Kafka"
    end_signal = signal.SIGKILL
    _jars: Path
    _java: Path
    _cluster_id: str
    _controller_port = _sasl_port = _tls_port = 0

    def url(self) -> str:
        return f"kafka://127.0.0.1:{self.port}"

    def sasl_url(self, user: str = USER, password: str = PASSWORD) -> str:
        """Return the URL of the listener that requires a user name and password."""
        return f"kafka://{user}:{password}@127.0.0.1:{self._sasl_port}"

    def tls_url(self) -> str:
        """Return the URL of the TLS listener; its certificate is in `certificate`."""
        return f"kafkas://127.0.0.1:{self._tls_port}"

    @property
    def certificate(self) -> Path | None:
        """The TLS listener's self-signed certificate; None if openssl was not available to create it."""
        path = self.folder / "certificate.pem"
        return path if path.exists() else None

    def _settle_in(self) -> None:
        with needs_extra("A Kafka broker for tests", "kafka"):
            import confluent_kafka.admin  # noqa: F401
        super()._settle_in()

    def _prepare(self) -> None:
        self._jars = find_kafka()
        self._java = find_java() / "bin" / "java"
        self._cluster_id = base64.urlsafe_b64encode(b"\x00" + os.urandom(15)).decode().rstrip("=")
        self.port = self.port or free_port()
        self._controller_port, self._sasl_port, self._tls_port = free_port(), free_port(), free_port()
        self._make_certificate()
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in self._configuration().items()))
        format_storage = ["format", "--standalone", "--cluster-id", self._cluster_id, "--config", str(self._properties)]
        self._spawn(self._run("kafka.tools.StorageTool", *format_storage))
        if status := self._reap():
            raise self._failure(f"formatting Kafka's storage ended with status {status}")

    def _command(self) -> list[str]:
        return self._run("kafka.Kafka", str(self._properties))

    def _answers(self) -> bool:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=5).close()
            admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{self.port}", "log_level": 0})
            cluster = admin.list_topics(timeout=5)
        except (OSError, KafkaException):
            return False
        return str(cluster.cluster_id) == self._cluster_id and bool(cluster.brokers)

    @property
    def _properties(self) -> Path:
        return self.folder / "server.properties"

    def _run(self, main: str, *arguments: str) -> list[str]:
        logging = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        return [
            str(self._java),
            *JAVA_OPTIONS,
            f"-Djava.io.tmpdir={self.folder}",
            logging,
            "-cp",
            f"{self._jars}/*",
            main,
            *arguments,
        ]

    def _make_certificate(self) -> None:
        openssl = shutil.which("openssl")
        if openssl is None:
            return
        key, certificate = self.folder / "key.pem", self.folder / "certificate.pem"
        make = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-subj", "/CN=penstock"]
        files = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
        subprocess.run([*make, *files], capture_output=True, check=True)
        (self.folder / "keystore.pem").write_text(key.read_text() + certificate.read_text())

    def _configuration(self) -> dict[str, object]:
        listeners = {"PLAINTEXT": self.port, "SASL_PLAINTEXT": self._sasl_port, "CONTROLLER": self._controller_port}
        if self.certificate:
            listeners["SSL"] = self._tls_port
        addresses = {name: f"{name}://127.0.0.1:{port}" for name, port in listeners.items()}
        return {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{self._controller_port}",
            "controller.listener.names": "CONTROLLER",
            "listeners": ",".join(addresses.values()),
            "advertised.listeners": ",".join(value for name, value in addresses.items() if name != "CONTROLLER"),
            "listener.security.protocol.map": ",".join(
                f"{name}:{'PLAINTEXT' if name == 'CONTROLLER' else name}" for name in listeners
            ),
            "log.dirs": self.folder / "data",
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            # After a crash, the broker waits until its previous session has timed out.
            "broker.session.timeout.ms": 2_000,
            "broker.heartbeat.interval.ms": 500,
            **({"log.flush.interval.messages": 1} if self.fsync else {}),
            **self._security(),
            **self.settings,
        }

    def _security(self) -> dict[str, object]:
        listener = "listener.name.sasl_plaintext"
        users = " ".join(f'user_{name}="{PASSWORD}"' for name in (USER, CLERK))
        tls = {"ssl.keystore.type": "PEM", "ssl.keystore.location": self.folder / "keystore.pem"}
        return {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:ANONYMOUS;User:{USER}",
            f"{listener}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
            f"{listener}.plain.sasl.jaas.config": f"{_PLAIN} required {users};",
            f"{listener}.scram-sha-256.sasl.jaas.config": f"{_SCRAM} required;",
            **(tls if self.certificate else {}),
        }
