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


def test_a_user_of_the_url_is_let_in(kafka_server):
    outcomes, expected = publish_to(kafka_server.sasl_url())
    assert outcomes == expected


def test_a_user_of_the_environment_is_let_in(kafka_server, monkeypatch):
    monkeypatch.setenv(USERNAME_VARIABLE, USER)
    monkeypatch.setenv(PASSWORD_VARIABLE, PASSWORD)
    outcomes, expected = publish_to(f"kafka://{kafka_server.sasl_url().rpartition('@')[2]}")
    assert outcomes == expected


def test_a_mechanism_can_be_chosen(kafka_server):
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{kafka_server.port}", "log_level": 0})
    secret = UserScramCredentialUpsertion(USER, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4_096), b"scrambled")
    for done in admin.alter_user_scram_credentials([secret]).values():
        done.result()
    outcomes, expected = publish_to(f"{kafka_server.sasl_url(password='scrambled')}?sasl_mechanism=scram-sha-256")
    assert outcomes == expected


def test_a_wrong_password_is_not_told(kafka_server):
    error = error_at(kafka_server.sasl_url(password="wrong-secret"))
    assert "Invalid username or password" in error
    assert "secret" not in error


def test_who_says_no_name_where_one_is_asked_for_is_told_so(kafka_server):
    assert "brokers are down" in error_at(f"kafka://{kafka_server.sasl_url().rpartition('@')[2]}")


def test_tls_with_a_certificate_that_is_trusted(certified):
    outcomes, expected = publish_to(f"{certified.tls_url()}?ssl_ca_certs={certified.certificate}")
    assert outcomes == expected


def test_a_certificate_that_nobody_vouches_for_is_a_retry_that_says_so(certified):
    assert "certificate could not be verified" in error_at(certified.tls_url())


def test_a_certificate_for_another_name_is_a_retry_that_says_so(certified):
    url = certified.tls_url().replace("127.0.0.1", "localhost")
    assert "certificate verify failed" in error_at(f"{url}?ssl_ca_certs={certified.certificate}")


def test_tls_where_none_is_spoken_is_a_retry_that_says_so(kafka_server):
    """The client's error text differs with the data that the broker sent before it closed the connection."""
    assert re.search("PLAINTEXT broker listener|SSL", error_at(kafka_server.url().replace("kafka:", "kafkas:")))


def test_no_tls_where_it_is_expected_is_a_retry_that_says_so(certified):
    assert "or expect TLS (kafkas:)" in error_at(certified.tls_url().replace("kafkas:", "kafka:"))
