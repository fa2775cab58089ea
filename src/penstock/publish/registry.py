"""Open the publisher of a URL.

The module of a destination, and the client library that it needs, are imported when a URL of that scheme is first
opened.
"""

from importlib import import_module
from typing import cast

from penstock.config.extras import needs_extra
from penstock.config.urls import url_scheme
from penstock.model.errors import UnknownScheme
from penstock.publish.api import Publisher

# The extra with the client library has the name of the module or of its folder.
_MODULES = {
    "amqp": "rabbitmq.publisher",
    "amqps": "rabbitmq.publisher",
    "file": "files",
    "http": "http.publisher",
    "https": "http.publisher",
    "kafka": "kafka.publisher",
    "kafkas": "kafka.publisher",
    "nats": "nats.publisher",
    "natss": "nats.publisher",
    "null": "null",
    "redis": "valkey",
    "rediss": "valkey",
    "stdout": "stdout",
    "valkey": "valkey",
    "valkeys": "valkey",
}


def open_publisher(url: str) -> Publisher:
    """Return the publisher for a URL such as `file:///var/events`. The publisher connects at its first batch."""
    scheme = url_scheme(url)
    name = _MODULES.get(scheme)
    if name is None:
        supported = ", ".join(sorted([*_MODULES, "lake"]))
        raise UnknownScheme(f"unknown destination scheme {scheme!r}; supported: {supported}")
    with needs_extra(f"destination scheme {scheme!r}", name.partition(".")[0]):
        module = import_module(f"penstock.publish.{name}")
    return cast(Publisher, module.from_url(url))
