"""Connection and authentication of `nats://`: URLs, options, credentials and TLS."""

import base64
import json
import os
import socket
import subprocess
import threading

import pytest
from nats_streams import Streams

from penstock.config.urls import mask_url
from penstock.model.errors import MissingDriver, UsageError
from penstock.model.outcome import Retry
from penstock.publish.nats import publisher as nats
from penstock.publish.registry import open_publisher
from penstock.testing.events import delivery
from penstock.testing.publishers import attempt, published
from tests.support.servers import NatsServer

VARIABLES = ("PENSTOCK_NATS_USERNAME", "PENSTOCK_NATS_PASSWORD", "PENSTOCK_NATS_TOKEN")


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    return monkeypatch


def access(url):
    return nats.from_url(url)._access


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("nats://localhost", ["localhost:4222"]),
        ("nats://localhost:4333/", ["localhost:4333"]),
        ("nats://one:4222,two,three:1", ["one:4222", "two:4222", "three:1"]),
        ("natss://[::1],[fe80::1]:4223", ["[::1]:4222", "[fe80::1]:4223"]),
        ("NATS://user:p%40ss@one,two?timeout_seconds=1", ["one:4222", "two:4222"]),
    ],
)
def test_url_lists_servers(url, hosts):
    assert list(access(url).hosts) == hosts


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("nats://", "invalid NATS URL"),
        ("nats://one,,two", "invalid NATS URL"),
        ("nats://one:port", "invalid NATS URL"),
        ("nats://one:0", "invalid NATS URL"),
        ("nats://one:70000", "invalid NATS URL"),
        ("nats://u:secret@p@one", None),
        ("nats://secret@one/subject", "expected only options after the hosts"),
        ("nats://one#there", "expected only options after the hosts"),
        ("nats://secret@[::1", "invalid URL"),
        ("nats://one?maxlen=1", "unknown option 'maxlen' for nats:"),
        ("nats://one?timeout_seconds=0", "timeout_seconds"),
        ("nats://one?stream=EVENTS", "stream and subjects must be set together"),
        ("nats://one?subjects=orders.>", "stream and subjects must be set together"),
        ("nats://one?ssl_ca_certs=ca.pem", "use natss:"),
        ("nats://one?tls_first=true", "use natss:"),
        ("natss://one?tls_first=perhaps", "must be true or false"),
        ("natss://one?ssl_ca_certs=missing.pem", "missing.pem"),
        ("natss://one?ssl_certfile=missing.pem", "missing.pem"),
        ("natss://one?ssl_keyfile=missing.pem", "ssl_certfile"),
        ("nats://u:secret@one?creds=file", "mutually exclusive"),
    ],
)
def test_invalid_url_is_refused_without_showing_secrets(url, complaint):
    if complaint is None:
        assert access(url).password == "secret@p", "the last @ ends the credentials"
        return
    with pytest.raises(UsageError, match=complaint) as refusal:
        open_publisher(url)
    assert "secret" not in str(refusal.value)


def test_credentials_come_from_url_or_environment(environment):
    environment.setenv("PENSTOCK_NATS_TOKEN", "from outside")
    assert access("nats://one").token == "from outside"
    assert access("nats://t%3Ak@one").token == "t:k"
    named = access("nats://u%40x:p%2Fw@one")
    assert (named.username, named.password, named.token) == ("u@x", "p/w", None)
    environment.delenv("PENSTOCK_NATS_TOKEN")
    environment.setenv("PENSTOCK_NATS_USERNAME", "u")
    with pytest.raises(UsageError, match="PENSTOCK_NATS_PASSWORD"):
        access("nats://one")
    environment.setenv("PENSTOCK_NATS_PASSWORD", "p")
    assert (access("nats://one").username, access("nats://one").password) == ("u", "p")


def test_secrets_are_not_shown():
    assert "secret" not in repr(access("nats://user:secret@one"))
    assert "secret" not in repr(access("nats://secret@one"))
    assert mask_url("to nats://secret@one:4222,two") == "to nats://***@one:4222,two"
    assert mask_url("natss://user:secret@one") == "natss://user:***@one"
    assert mask_url("postgresql://user@one") == "postgresql://user@one"


def test_credentials_file_requires_extra(monkeypatch):
    monkeypatch.setattr(nats, "find_spec", lambda name: None)
    with pytest.raises(MissingDriver, match="nats"):
        open_publisher("nats://one?creds=file")


@pytest.mark.parametrize("content", [None, "no credentials", "-----BEGIN NATS USER JWT-----\nx\n"])
def test_file_without_credentials_is_refused(tmp_path, monkeypatch, content):
    monkeypatch.setattr(nats, "find_spec", lambda name: name)
    file = tmp_path / "user.creds"
    if content is not None:
        file.write_text(content)
    with pytest.raises(UsageError, match=r"user\.creds"):
        open_publisher(f"nats://one?creds={file}")


def test_only_right_token_is_accepted(nats_server, environment):
    with NatsServer(fsync=False, settings={"authorization": {"token": "right-secret"}}) as server:
        Streams(server.url("right-secret")).create("EVENTS", "orders.>")
        environment.setenv("PENSTOCK_NATS_TOKEN", "right-secret")
        assert refusal(server.url()) is None
        for url in (server.url("wrong-secret"), server.url("user:wrong-secret")):
            error = refusal(url)
            assert "authorization violation" in error.lower()
            assert "secret" not in error


def refusal(url):
    """Return the error of a publish attempt, or None."""
    publisher, event = open_publisher(url), delivery()
    outcomes = attempt(publisher, [event])
    publisher.close()
    if outcomes == published([event]):
        return None
    assert isinstance(outcomes[event.seq], Retry)
    return outcomes[event.seq].error


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A self-signed certificate for 127.0.0.1, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    subprocess.run([*command, *names, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    return certificate, key


def tls_server(certificate, **settings):
    files = {"cert_file": str(certificate[0]), "key_file": str(certificate[1])}
    return NatsServer(fsync=False, settings={"tls": files | settings.pop("tls", {}), **settings})


@pytest.mark.parametrize(
    "settings",
    [{}, {"allow_non_tls": True}, {"tls": {"handshake_first": "300ms"}}],
    ids=["required", "offered", "first, or else"],
)
def test_tls_requires_trusted_certificate(nats_server, certificate, settings):
    first = "&tls_first=true" if "tls" in settings else ""
    with tls_server(certificate, **settings) as server:
        url = f"natss://127.0.0.1:{server.port}?stream=EVENTS&subjects=orders.>{first}"
        assert refusal(f"{url}&ssl_ca_certs={certificate[0]}") is None
        assert "certificate verify failed" in refusal(url)


def test_client_certificate_is_sent(nats_server, certificate):
    settings = {"tls": {"verify": True, "ca_file": str(certificate[0])}}
    with tls_server(certificate, **settings) as server:
        trusting = f"natss://127.0.0.1:{server.port}?stream=EVENTS&subjects=orders.>&ssl_ca_certs={certificate[0]}"
        assert refusal(f"{trusting}&ssl_certfile={certificate[0]}&ssl_keyfile={certificate[1]}") is None
        assert refusal(trusting) is not None


def test_password_is_not_sent_to_server_without_tls(nats_server):
    error = refusal(f"natss://user:secret@127.0.0.1:{nats_server.port}")
    assert "the server does not offer TLS" in error
    assert "secret" not in error


@pytest.mark.parametrize("credentials", ["user:password", "token", "file", "none"])
def test_client_sends_nothing_to_server_without_tls(tmp_path, credentials):
    """The server asks for credentials, as an impostor would do."""
    heard = []

    def ask(listener):
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as stream:
            connection.sendall(b'INFO {"server_id":"x","max_payload":100,"auth_required":true,"nonce":"x"}\r\n')
            heard.append(stream.read())

    with socket.create_server(("127.0.0.1", 0)) as listener:
        asking = threading.Thread(target=ask, args=[listener])
        asking.start()
        host = f"127.0.0.1:{listener.getsockname()[1]}"
        if credentials == "file":
            credentials_file(tmp_path / "user.creds", "jwt", Keys("USER").seed)
            error = refusal(f"natss://{host}?creds={tmp_path}/user.creds")
        else:
            error = refusal(f"natss://{host}" if credentials == "none" else f"natss://{credentials}@{host}")
        asking.join()
    assert "the server does not offer TLS" in error
    assert heard == [b""]


class Keys:
    """A NATS key pair that can sign claims about another key."""

    def __init__(self, prefix):
        nkeys = pytest.importorskip("nkeys")
        self.seed = nkeys.encode_seed(os.urandom(32), getattr(nkeys, f"PREFIX_BYTE_{prefix}"))
        self._pair = nkeys.from_seed(self.seed)
        self.name = self._pair.public_key.decode()

    def sign(self, subject, **claims):
        body = {"jti": subject, "iat": 0, "iss": self.name, "name": subject, "sub": subject}
        head = {"typ": "JWT", "alg": "ed25519-nkey"}
        text = ".".join(
            base64url(json.dumps(part).encode()) for part in (head, body | {"nats": {**claims, "version": 2}})
        )
        return f"{text}.{base64url(self._pair.sign(text.encode()))}"


def base64url(data):
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def credentials_file(file, jwt, seed):
    lines = ["-----BEGIN NATS USER JWT-----", jwt, "------END NATS USER JWT------", ""]
    lines += ["-----BEGIN USER NKEY SEED-----", seed.decode(), "------END USER NKEY SEED------", ""]
    file.write_text("\n".join(lines))


@pytest.fixture
def ruled(nats_server, tmp_path):
    """A server with an operator, and a function that issues a user's credentials by a known or an unknown account."""
    operator, account, system, stranger = map(Keys, ("OPERATOR", "ACCOUNT", "ACCOUNT", "ACCOUNT"))
    limits = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1) | {"wildcards": True}
    storage = dict.fromkeys(("mem_storage", "disk_storage", "streams", "consumer"), -1)
    accounts = {
        account.name: operator.sign(account.name, type="account", limits=limits | storage),
        system.name: operator.sign(system.name, type="account", limits=limits),
    }
    rule = {"operator": operator.sign(operator.name, type="operator"), "system_account": system.name}

    def issue(*, known):
        user, issuer = Keys("USER"), account if known else stranger
        jwt = issuer.sign(user.name, type="user", subs=-1, data=-1, payload=-1)
        credentials_file(tmp_path / "user.creds", jwt, user.seed)
        return tmp_path / "user.creds"

    settings = {**rule, "resolver": "MEMORY", "resolver_preload": accounts}
    with NatsServer(fsync=False, settings=settings) as server:
        yield server, issue


def test_credentials_file_is_read_at_each_connection(ruled):
    server, issue = ruled
    publisher, event = (
        open_publisher(f"{server.url()}?creds={issue(known=False)}&stream=EVENTS&subjects=orders.>"),
        delivery(),
    )
    refused = attempt(publisher, [event])[event.seq]
    issue(known=True)
    assert attempt(publisher, [event]) == published([event])
    publisher.close()
    assert "authorization violation" in refused.error.lower()
