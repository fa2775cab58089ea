"""Authentication and TLS of `kafka://`: users, certificates, and errors without passwords."""

import re

import pytest
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from penstock.model.outcome import Retry
from penstock.publish.kafka.settings import PASSWORD_VARIABLE, USERNAME_VARIABLE
from penstock.publish.registry import open_publisher
from penstock.testing.events import delivery
from penstock.testing.publishers import messages, published
from tests.support.servers.kafka import PASSWORD, USER


def publish_to(url):
    publisher, event = open_publisher(url), delivery()
    outcomes = publisher.publish(messages([event]))
    publisher.close()
    return outcomes, published([event])


def error_at(url):
    """Return the error of a publisher with a time-out of two seconds."""
    outcomes, _ = publish_to(f"{url}{'&' if '?' in url else '?'}timeout_seconds=2")
    [outcome] = outcomes.values()
    assert isinstance(outcome, Retry), outcome
    return outcome.error


@pytest.fixture
def certified(kafka_server):
    if kafka_server.certificate is None:
        pytest.skip("there is no openssl here to make a certificate")
    return kafka_server


def test_user_of_url_is_accepted(kafka_server):
    outcomes, expected = publish_to(kafka_server.sasl_url())
    assert outcomes == expected


def test_user_of_environment_is_accepted(kafka_server, monkeypatch):
    monkeypatch.setenv(USERNAME_VARIABLE, USER)
    monkeypatch.setenv(PASSWORD_VARIABLE, PASSWORD)
    outcomes, expected = publish_to(f"kafka://{kafka_server.sasl_url().rpartition('@')[2]}")
    assert outcomes == expected


def test_sasl_mechanism_can_be_chosen(kafka_server):
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{kafka_server.port}", "log_level": 0})
    secret = UserScramCredentialUpsertion(USER, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4_096), b"scrambled")
    for done in admin.alter_user_scram_credentials([secret]).values():
        done.result()
    outcomes, expected = publish_to(f"{kafka_server.sasl_url(password='scrambled')}?sasl_mechanism=scram-sha-256")
    assert outcomes == expected


def test_wrong_password_is_not_shown_in_error(kafka_server):
    error = error_at(kafka_server.sasl_url(password="wrong-secret"))
    assert "Invalid username or password" in error
    assert "secret" not in error


def test_missing_user_is_retry_with_cause(kafka_server):
    assert "brokers are down" in error_at(f"kafka://{kafka_server.sasl_url().rpartition('@')[2]}")


def test_trusted_certificate_is_accepted(certified):
    outcomes, expected = publish_to(f"{certified.tls_url()}?ssl_ca_certs={certified.certificate}")
    assert outcomes == expected


def test_untrusted_certificate_is_retry_with_cause(certified):
    assert "certificate could not be verified" in error_at(certified.tls_url())


def test_certificate_for_different_name_is_retry_with_cause(certified):
    url = certified.tls_url().replace("127.0.0.1", "localhost")
    assert "certificate verify failed" in error_at(f"{url}?ssl_ca_certs={certified.certificate}")


def test_tls_to_plaintext_listener_is_retry_with_cause(kafka_server):
    """The client's error text differs with the data that the broker sent before it closed the connection."""
    assert re.search("PLAINTEXT broker listener|SSL", error_at(kafka_server.url().replace("kafka:", "kafkas:")))


def test_plaintext_to_tls_listener_is_retry_with_cause(certified):
    assert "or expect TLS (kafkas:)" in error_at(certified.tls_url().replace("kafkas:", "kafka:"))
