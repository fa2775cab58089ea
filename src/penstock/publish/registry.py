"""Open the publisher that a URL names. The module of a destination, and the client library that it needs, are imported
when its URL is first opened."""

from importlib import import_module
from typing import NamedTuple, cast

from penstock.config.extras import needs_extra
from penstock.config.urls import url_scheme
from penstock.model.errors import UnknownScheme
from penstock.publish.api import Publisher


class _Destination(NamedTuple):
    module: str
    extra: str | None = None


_DESTINATIONS = {
    "amqp": _Destination("penstock.publish.rabbitmq.publisher", "rabbitmq"),
    "amqps": _Destination("penstock.publish.rabbitmq.publisher", "rabbitmq"),
    "file": _Destination("penstock.publish.files"),
    "http": _Destination("penstock.publish.http.publisher", "http"),
    "https": _Destination("penstock.publish.http.publisher", "http"),
    "kafka": _Destination("penstock.publish.kafka.publisher", "kafka"),
    "kafkas": _Destination("penstock.publish.kafka.publisher", "kafka"),
    "nats": _Destination("penstock.publish.nats.publisher", "nats"),
    "natss": _Destination("penstock.publish.nats.publisher", "nats"),
    "null": _Destination("penstock.publish.null"),
    "redis": _Destination("penstock.publish.valkey", "valkey"),
    "rediss": _Destination("penstock.publish.valkey", "valkey"),
    "stdout": _Destination("penstock.publish.stdout"),
    "valkey": _Destination("penstock.publish.valkey", "valkey"),
    "valkeys": _Destination("penstock.publish.valkey", "valkey"),
}


def open_publisher(url: str) -> Publisher:
    """The publisher for a URL such as `file:///var/events`. It connects at its first batch, not here."""
    scheme = url_scheme(url)
    destination = _DESTINATIONS.get(scheme)
    if destination is None:
        known = ", ".join(f"{name}:" for name in sorted([*_DESTINATIONS, "lake"]))
        raise UnknownScheme(f"no destination answers to {scheme}: URLs; there are {known}")
    if destination.extra is None:
        module = import_module(destination.module)
    else:
        with needs_extra(f"{scheme}:", destination.extra):
            module = import_module(destination.module)
    return cast(Publisher, module.from_url(url))
