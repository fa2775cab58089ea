"""Client settings from a `kafka://` URL, and the errors for invalid URLs. Nothing connects."""

import pickle

import pytest

from penstock.model.errors import UsageError
from penstock.publish.kafka.settings import settings_of
from penstock.publish.registry import open_publisher


def client_of(url, **environment):
    return settings_of(url, environment).client


def test_default_settings_support_guarantees():
    client = client_of("kafka://broker")
    assert client["enable.idempotence"] is True
    assert client["acks"] == "all"
    assert client["message.timeout.ms"] == 5_000
    assert client["security.protocol"] == "PLAINTEXT"


@pytest.mark.parametrize(
    ("hosts", "servers"),
    [
        ("broker", "broker:9092"),
        ("one:9092,two:9093", "one:9092,two:9093"),
        ("one,two:9093/", "one:9092,two:9093"),
        ("[::1]:9094,[::2]", "[::1]:9094,[::2]:9092"),
    ],
)
def test_every_host_is_bootstrap_server(hosts, servers):
    assert client_of(f"kafka://{hosts}")["bootstrap.servers"] == servers
    assert client_of(f"kafka://user:secret@{hosts}")["bootstrap.servers"] == servers


def test_timeout_sets_message_timeout_of_client():
    settings = settings_of("kafka://broker?timeout_seconds=0.5", {})
    assert settings.timeout_seconds == 0.5
    assert settings.client["message.timeout.ms"] == 500


def test_linger_is_shortened_to_fit_timeout():
    assert client_of("kafka://broker?timeout_seconds=0.001")["linger.ms"] == 0.5


def test_credentials_of_url_are_decoded():
    client = client_of("kafka://m%40e:p%3Aw@broker")
    assert (client["sasl.username"], client["sasl.password"]) == ("m@e", "p:w")
    assert client["security.protocol"] == "SASL_PLAINTEXT"
    assert client["sasl.mechanisms"] == "PLAIN"


def test_password_may_come_from_environment():
    client = client_of("kafkas://me@broker?sasl_mechanism=SCRAM-SHA-512", PENSTOCK_KAFKA_PASSWORD="secret")
    assert (client["sasl.username"], client["sasl.password"]) == ("me", "secret")
    assert client["security.protocol"] == "SASL_SSL"
    assert client["sasl.mechanisms"] == "SCRAM-SHA-512"


def test_credentials_of_url_override_environment():
    environment = {"PENSTOCK_KAFKA_USERNAME": "you", "PENSTOCK_KAFKA_PASSWORD": "yours"}
    client = client_of("kafka://me:mine@broker", **environment)
    assert (client["sasl.username"], client["sasl.password"]) == ("me", "mine")


def test_oauthbearer_needs_no_user():
    client = client_of("kafkas://broker?sasl_mechanism=OAUTHBEARER")
    assert client["security.protocol"] == "SASL_SSL"
    assert "sasl.username" not in client


def test_url_can_set_any_client_setting():
    client = client_of("kafka://broker?config.linger.ms=20&config.compression.type=lz4")
    assert client["linger.ms"] == "20"
    assert client["compression.type"] == "lz4"


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        ("broker/topic", "expected kafka://host:9092"),
        ("", "expected kafka://host:9092"),
        ("one,,two", "expected kafka://host:9092"),
        ("broker:port", "expected kafka://host:9092"),
        ("[::1", "invalid URL"),
        ("broker?retries=1", "unknown option 'retries'.*config\\.…"),
        ("broker?timeout_seconds=0", "timeout_seconds must be a number greater than 0"),
        ("broker?config.no.such=1", "no.such"),
        ("broker?config.linger.ms=soon", "linger.ms"),
        ("broker?config.error_cb=print", "cannot be set"),
        ("broker?config.stats_cb=print", "invalid Kafka settings"),
        ("broker?config.acks=1", "option config.acks cannot be set"),
        ("broker?config.request.required.acks=1", "cannot be set"),
        ("broker?config.bootstrap.servers=other", "cannot be set"),
        ("broker?config.max.in.flight=6", "max.in.flight"),
        ("broker?ssl_ca_certs=ca.pem", "use kafkas:"),
        ("broker?sasl_mechanism=PLAIN", "missing user for sasl_mechanism=PLAIN"),
        ("me@broker", "missing password for kafka://me@broker; set PENSTOCK_KAFKA_PASSWORD"),
        ("me:secret@broker?sasl_mechanism=GUESS", "GUESS"),
    ],
)
def test_invalid_url_is_refused(rest, message):
    with pytest.raises(UsageError, match=message):
        client_of(f"kafka://{rest}")


@pytest.mark.parametrize(
    "url",
    [
        "kafka://me:secret@broker/topic",
        "kafka://me:secret@broker?sasl_mechanism=GUESS",
        "kafka://me:secret@broker?config.sasl.password=secret",
        "kafkas://broker?config.ssl.key.password=secret&config.no.such=1",
        "kafkas://broker?ssl_ca_certs=nowhere.pem&config.ssl.key.pem=secret",
    ],
)
def test_url_errors_hide_secrets(url):
    with pytest.raises(UsageError) as refusal:
        client_of(url)
    assert "secret" not in str(refusal.value)


def test_settings_hide_secrets():
    assert "secret" not in repr(settings_of("kafka://me:secret@broker", {}))


def test_publisher_can_not_be_pickled():
    with pytest.raises(TypeError, match="cannot pickle a KafkaPublisher"):
        pickle.dumps(open_publisher("kafkas://broker"))
