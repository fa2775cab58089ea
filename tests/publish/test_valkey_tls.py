"""`valkeys://` against a real server behind a TLS proxy."""

import socket
import ssl
import threading

import pytest
from http_receiver import make_certificate

from penstock.model.errors import SourceUnavailable
from penstock.model.outcome import PUBLISHED, Retry
from penstock.pipeline.streams.sources.valkey.consumer_group import Group
from penstock.publish.registry import open_publisher
from penstock.testing.events import delivery
from penstock.testing.publishers import attempt, messages


class TlsFront:
    """A proxy that terminates TLS and forwards the data to the server."""

    def __init__(self, certificate, port):
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate.certificate, certificate.key)
        self._target = port
        self.admitted = 0
        """Number of clients that have accepted the certificate."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _serve(self):
        """Serve one connection after the other: a publisher holds one."""
        while True:
            try:
                raw, _ = self._listener.accept()
            except OSError:
                return
            try:
                with self._context.wrap_socket(raw, server_side=True) as client:
                    self.admitted += 1
                    self._talk(client)
            except OSError:
                raw.close()  # a client that doesn't trust the certificate disconnects

    def _talk(self, client):
        with socket.create_connection(("127.0.0.1", self._target)) as server:
            back = threading.Thread(target=_pass, args=[server, client])
            back.start()
            _pass(client, server)
            server.shutdown(socket.SHUT_WR)
            back.join()


def _pass(source, target):
    try:
        while data := source.recv(65_536):
            target.sendall(data)
    except OSError:
        return


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def front(certificate, broker):
    with TlsFront(certificate, broker.port) as front:
        yield front


def test_events_arrive_over_tls(front, certificate, client):
    publisher = open_publisher(f"valkeys://127.0.0.1:{front.port}/0?ssl_ca_certs={certificate.certificate}")
    events = [delivery() for _ in range(100)]
    assert publisher.publish(messages(events)) == {event.seq: PUBLISHED for event in events}
    publisher.close()
    assert client.xlen("orders.created") == 100


def test_untrusted_certificate_is_retry_with_cause(front, client):
    publisher, event = open_publisher(f"valkeys://127.0.0.1:{front.port}/0"), delivery()
    outcome = attempt(publisher, [event])[event.seq]
    publisher.close()
    assert isinstance(outcome, Retry)
    assert "CERTIFICATE_VERIFY_FAILED" in outcome.error
    assert client.xlen("orders.created") == 0


@pytest.fixture(params=["valkeys", "rediss"])
def misnamed(request, front, certificate):
    """The URL of a server with a trusted certificate for another host name."""
    return f"{request.param}://me:secret@localhost:{front.port}/0?ssl_ca_certs={certificate.certificate}"


def test_publisher_sends_nothing_to_server_with_certificate_of_another_name(misnamed, front):
    publisher, event = open_publisher(misnamed), delivery()
    outcome = attempt(publisher, [event])[event.seq]
    publisher.close()
    assert isinstance(outcome, Retry)
    assert "certificate is not valid for 'localhost'" in outcome.error
    assert front.admitted == 0


def test_stream_source_sends_nothing_to_server_with_certificate_of_another_name(misnamed, front):
    with pytest.raises(SourceUnavailable, match="certificate is not valid for 'localhost'"):
        Group(misnamed, "orders", "totals").ensure("0")
    assert front.admitted == 0
