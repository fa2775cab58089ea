"""Settings of the Kafka client, from a `kafka:` URL and the environment. Nothing connects here."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from confluent_kafka import KafkaException, Producer

from penstock.config.options import known_options, timeout_option, uses_tls
from penstock.config.urls import mask_url
from penstock.model.errors import UsageError

DEFAULT_PORT = 9092
USERNAME_VARIABLE = "PENSTOCK_KAFKA_USERNAME"
PASSWORD_VARIABLE = "PENSTOCK_KAFKA_PASSWORD"  # noqa: S105 (its name)

_PREFIX = "config."
_TLS_OPTIONS = {
    "ssl_ca_certs": "ssl.ca.location",
    "ssl_certfile": "ssl.certificate.location",
    "ssl_keyfile": "ssl.key.location",
}
# Aliases and further names of settings that are fixed here. Transactions are excluded: they would need another commit.
_ALSO_OURS = frozenset(
    {
        "metadata.broker.list",
        "request.required.acks",
        "delivery.timeout.ms",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.username",
        "sasl.password",
        "transactional.id",
        "error_cb",
        "logger",
    }
)


@dataclass(frozen=True, slots=True, repr=False)
class Settings:
    """The client's settings. Has no `repr`, because they include the password."""

    client: Mapping[str, Any]
    timeout_seconds: float

    @property
    def unanswered_hint(self) -> str:
        """Hint for unanswered calls: a broker that expects TLS closes a plain connection without an error message."""
        return "" if "SSL" in self.client["security.protocol"] else ", or expect TLS (kafkas:)"


def settings_of(url: str, environment: Mapping[str, str] = os.environ) -> Settings:
    """Parse and validate the client settings, so that a wrong option fails at start-up."""
    options = known_options(url, {"timeout_seconds", "sasl_mechanism", *_TLS_OPTIONS}, _PREFIX)
    timeout_seconds = timeout_option(options)
    parts = urlsplit(url)
    ours = {
        "bootstrap.servers": _servers(url, parts),
        **_delivery(timeout_seconds),
        **_security(url, parts, options, environment),
    }
    theirs = {name.removeprefix(_PREFIX): value for name, value in options.items() if name.startswith(_PREFIX)}
    for name in theirs:
        if name in ours or name in _ALSO_OURS:
            raise UsageError(f"option {_PREFIX}{name} cannot be set; the URL and Penstock's guarantees determine it")
    client = {**_defaults(timeout_seconds), **theirs, **ours}
    _try_out(url, client)
    return Settings(client, timeout_seconds)


def _delivery(timeout_seconds: float) -> dict[str, Any]:
    return {
        "enable.idempotence": True,
        "acks": "all",
        "message.timeout.ms": _milliseconds(timeout_seconds),
        # Calling Python for every success would cost more than sending the event.
        "delivery.report.only.error": True,
    }


def _defaults(timeout_seconds: float) -> dict[str, Any]:
    """Return the settings that `config.…` options may override."""
    return {
        "client.id": "penstock",
        "linger.ms": min(5, _milliseconds(timeout_seconds) / 2),
        "reconnect.backoff.max.ms": 1_000,
        # Time for a topic to appear if the broker creates it automatically.
        "topic.metadata.propagation.max.ms": _milliseconds(timeout_seconds / 2),
        # The outcomes contain the causes; a library should not write to stderr.
        "log_level": 0,
    }


def _milliseconds(seconds: float) -> int:
    return max(int(seconds * 1_000), 1)


def _servers(url: str, parts: SplitResult) -> str:
    hosts = parts.netloc.rpartition("@")[2].split(",")
    if parts.path not in ("", "/") or not all(
        re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]+)(:\d{1,5})?", h) for h in hosts
    ):
        raise UsageError(f"invalid URL {mask_url(url)}; expected kafka://host:9092,other:9092")
    return ",".join(host if re.search(r":\d+$", host) else f"{host}:{DEFAULT_PORT}" for host in hosts)


def _security(
    url: str, parts: SplitResult, options: Mapping[str, str], environment: Mapping[str, str]
) -> dict[str, str]:
    tls = uses_tls(parts.scheme, options)
    files = {_TLS_OPTIONS[name]: value for name, value in options.items() if name in _TLS_OPTIONS}
    sasl = _credentials(url, parts, options, environment)
    return {"security.protocol": f"{'SASL_' if sasl else ''}{'SSL' if tls else 'PLAINTEXT'}", **files, **sasl}


def _credentials(
    url: str, parts: SplitResult, options: Mapping[str, str], environment: Mapping[str, str]
) -> dict[str, str]:
    """Return the SASL settings, with credentials from the URL or else the environment.

    Without credentials, connect anonymously unless `sasl_mechanism` names a mechanism that needs no user name.
    """
    name, _, password = parts.netloc.rpartition("@")[0].partition(":")
    name = unquote(name) or environment.get(USERNAME_VARIABLE, "")
    password = unquote(password) or environment.get(PASSWORD_VARIABLE, "")
    mechanism = options.get("sasl_mechanism", "PLAIN").upper()
    if not name and mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
        if "sasl_mechanism" in options:
            raise UsageError(f"missing user for sasl_mechanism={mechanism}; set it in the URL or {USERNAME_VARIABLE}")
        return {}
    if not name:
        return {"sasl.mechanisms": mechanism}
    if not password:
        raise UsageError(f"missing password for {mask_url(url)}; set {PASSWORD_VARIABLE}")
    return {"sasl.mechanisms": mechanism, "sasl.username": name, "sasl.password": password}


def _try_out(url: str, client: Mapping[str, Any]) -> None:
    """Validate the settings with a producer without brokers, which connects to nothing."""
    try:
        Producer({name: value for name, value in client.items() if name != "bootstrap.servers"})
    except (KafkaException, TypeError, ValueError) as error:
        reason = error.args[0].str() if isinstance(error, KafkaException) else error
        raise UsageError(f"invalid Kafka settings in {mask_url(url)}: {reason}") from None
