"""`amqp://` and `amqps://` publish events to RabbitMQ: persistent, confirmed, and returned if no queue accepts them.

All messages of a batch are in flight together, and each has its own answer. After a failure the next batch opens a new
connection.
"""

import os
import re
from collections.abc import Mapping, Sequence
from urllib.parse import SplitResult, unquote, urlsplit

from pika import BasicProperties, ConnectionParameters, PlainCredentials, SSLOptions

from penstock.config.options import TLS_OPTIONS, known_options, timeout_option, tls_context, uses_tls, whole_number
from penstock.model.errors import UsageError
from penstock.model.event import CONTENT_TYPE, Delivery
from penstock.model.outcome import PUBLISHED, Dead, Outcome, Retry
from penstock.publish.api import Message, Unpicklable
from penstock.publish.errors import presentable
from penstock.publish.rabbitmq.amqp import CONFIRMED, REFUSED, Link, OutgoingMessage

HEARTBEAT_SECONDS = 60
USERNAME_VARIABLE = "PENSTOCK_AMQP_USERNAME"
PASSWORD_VARIABLE = "PENSTOCK_AMQP_PASSWORD"  # noqa: S105
DEFAULT_CREDENTIAL = "guest"
PORTS = {"amqp": 5672, "amqps": 5671}
_OPTIONS = TLS_OPTIONS | {"exchange", "max_message_bytes", "timeout_seconds"}

QUEUE_HEADER = "penstock-queue"
CREATED_AT_HEADER = "penstock-created-at"
PARTITION_KEY_HEADER = "penstock-partition-key"
ORDERING_KEY_HEADER = "penstock-ordering-key"
OWN_HEADERS = frozenset({QUEUE_HEADER, CREATED_AT_HEADER, PARTITION_KEY_HEADER, ORDERING_KEY_HEADER})
# RabbitMQ reads these headers as lists of further routing keys, and closes the channel if the values are text.
ROUTING_HEADERS = frozenset({"CC", "BCC"})

PERSISTENT = 2
SHORT_BYTES = 255
EXCHANGE_NAME_BYTES = 127
HEADER_NAME_BYTES = 128
# Default limits of the server's versions. A server with another limit reports it when it first refuses a message.
MESSAGE_BYTES = 134_217_728
MESSAGE_BYTES_FROM_4 = 16_777_216
_SERVERS_LIMIT = re.compile(r"message size \d+ is larger than configured max size (\d+)")
# Bytes of a properties frame besides header names and values: the frame's own (exact), those per header (exact), and an
# upper bound for all others.
HEADER_FRAME_BYTES = 20
HEADER_BYTES = 6
OTHER_PROPERTIES_BYTES = 1_024


class Unsendable(Exception):
    """An event that no RabbitMQ server would accept, with the reason."""


class RabbitPublisher(Unpicklable):
    """Publisher for RabbitMQ. Not `in_order`: the broker may refuse one message of a batch and accept the next."""

    in_order = False

    def __init__(self, broker: ConnectionParameters, exchange: str = "", max_message_bytes: int | None = None) -> None:
        self._broker = broker
        self._exchange = exchange
        self._limit = max_message_bytes
        self._link: Link | None = None

    def publish(self, messages: Sequence[Message]) -> dict[int, Outcome]:
        if not messages:
            return {}
        link = self._link
        try:
            if link is None or link.failure is not None:
                link = self._link = Link(self._broker, self._exchange)
                link.open()
            if link.failure is not None:
                return dict.fromkeys((message.event.seq for message in messages), Retry(presentable(link.failure)))
            return self._send(link, messages)
        except BaseException:
            # After an interrupt the connection may still receive answers to this batch: use a new one for the next
            # batch.
            if link is not None:
                link.abort("interrupted")
            raise

    def close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def _send(self, link: Link, messages: Sequence[Message]) -> dict[int, Outcome]:
        limit = self._limit or _usual_limit(link.server_version)
        outcomes: dict[int, Outcome] = {}
        outgoing = []
        sent = []
        for message in messages:
            try:
                outgoing.append(_outgoing(message, limit, link.frame_max))
                sent.append(message)
            except Unsendable as reason:
                outcomes[message.event.seq] = Dead(presentable(reason))
        answers = link.publish(outgoing) if outgoing else []
        if link.failure is not None:
            self._learn_limit(link.failure)
            link.abort(link.failure)
        for message, answer in zip(sent, answers, strict=True):
            outcomes[message.event.seq] = self._outcome(message, answer, link.failure)
        return outcomes

    def _outcome(self, message: Message, answer: str | None, failure: str | None) -> Outcome:
        exchange = f"exchange {self._exchange!r}" if self._exchange else "the default exchange"
        way = f"{exchange} with routing key {message.topic!r}"
        if answer == CONFIRMED:
            return PUBLISHED
        if answer == REFUSED:
            return Retry(f"RabbitMQ rejected the message (nack): the queue of {way} is full or unavailable")
        if answer is not None:
            return Retry(f"{answer}: no queue is bound to {way}")
        if self._limit is not None and len(message.event.payload) > self._limit:
            return Dead(_too_large(message.event, self._limit))
        return Retry(presentable(failure))

    def _learn_limit(self, failure: str) -> None:
        """Remember the server's size limit.

        A message above it closes the channel of the whole batch, so later ones are rejected before they are sent.
        """
        if found := _SERVERS_LIMIT.search(failure):
            self._limit = int(found[1])


def _outgoing(message: Message, message_bytes: int, frame_max: int) -> OutgoingMessage:
    """Convert an event to a message. Reject an event that would close the channel of the whole batch."""
    event = message.event
    if len(event.payload) > message_bytes:
        raise Unsendable(_too_large(event, message_bytes))
    _require_short("topic", message.topic)
    _require_short("event type", event.event_type)
    properties = BasicProperties(
        content_type=_content_type(event.headers),
        headers=_headers(event),
        delivery_mode=PERSISTENT,
        message_id=str(event.event_id),
        timestamp=int(event.created_at.timestamp()),
        type=event.event_type,
    )
    _require_fitting(properties, frame_max)
    return OutgoingMessage(message.topic, event.payload, properties)


def _headers(event: Delivery) -> dict[str, str]:
    headers = {QUEUE_HEADER: event.queue, CREATED_AT_HEADER: event.created_at.isoformat()}
    if event.partition_key is not None:
        headers[PARTITION_KEY_HEADER] = event.partition_key
    if event.ordering_key is not None:
        headers[ORDERING_KEY_HEADER] = event.ordering_key
    if event.headers:
        for name in event.headers:
            _require_sendable(name)
        headers |= event.headers
    return headers


def _require_sendable(name: str) -> None:
    if name in OWN_HEADERS:
        raise Unsendable(f"header {name!r} is reserved for Penstock; rename it")
    if name in ROUTING_HEADERS:
        raise Unsendable(f"header {name!r} is reserved for RabbitMQ's routing keys; rename it")
    if len(name.encode()) > HEADER_NAME_BYTES:
        raise Unsendable(f"header name {name!r} must have at most {HEADER_NAME_BYTES} bytes in AMQP")


def _require_fitting(properties: BasicProperties, frame_max: int) -> None:
    """Reject properties that do not fit in one frame: AMQP cannot split them."""
    headers = sum(len(name.encode()) + len(value.encode()) + HEADER_BYTES for name, value in properties.headers.items())
    if headers + OTHER_PROPERTIES_BYTES > frame_max:
        size = sum(map(len, properties.encode())) + HEADER_FRAME_BYTES
        if size > frame_max:
            raise Unsendable(f"headers of {size:,} bytes exceed the broker's frame_max of {frame_max:,}")


def _require_short(what: str, text: str) -> None:
    if len(text.encode()) > SHORT_BYTES:
        raise Unsendable(f"{what} {text!r} must have at most {SHORT_BYTES} bytes in AMQP")


def _content_type(headers: Mapping[str, str]) -> str | None:
    """Return the content type if it fits the property's 255 bytes. The header itself is sent in any case."""
    found = next((value for name, value in headers.items() if name.lower() == CONTENT_TYPE), None)
    return found if found and len(found.encode()) <= SHORT_BYTES else None


def _too_large(event: Delivery, limit: int) -> str:
    return f"payload of {len(event.payload):,} bytes exceeds the broker's max_message_size of {limit:,}"


def _usual_limit(server_version: str) -> int:
    major = server_version.partition(".")[0]
    return MESSAGE_BYTES_FROM_4 if major.isdecimal() and int(major) >= 4 else MESSAGE_BYTES


def from_url(url: str) -> RabbitPublisher:
    parts = urlsplit(url)
    host, port = parts.hostname or "localhost", _port(parts)
    options = known_options(url, _OPTIONS)
    timeout = timeout_option(options)
    broker = ConnectionParameters(
        host=host,
        port=port,
        virtual_host=_virtual_host(parts.path),
        credentials=PlainCredentials(
            _credential(parts.username, USERNAME_VARIABLE), _credential(parts.password, PASSWORD_VARIABLE)
        ),
        ssl_options=SSLOptions(tls_context(options), host) if uses_tls(parts.scheme, options) else None,
        heartbeat=HEARTBEAT_SECONDS,
        socket_timeout=timeout,
        stack_timeout=timeout,
        client_properties={"product": "penstock"},
    )
    exchange = options.get("exchange", "")
    if len(exchange.encode()) > EXCHANGE_NAME_BYTES:
        raise UsageError(f"exchange {exchange!r} must have at most {EXCHANGE_NAME_BYTES} bytes in AMQP")
    return RabbitPublisher(broker, exchange, whole_number(options, "max_message_bytes"))


def _port(parts: SplitResult) -> int:
    try:
        return parts.port or PORTS[parts.scheme]
    except ValueError:
        # The text in place of the port may be part of a password: don't show it.
        raise UsageError(
            f"invalid {parts.scheme}: URL; expected a number as the port, and /?#@ in a password as %2F, %3F, %23, %40"
        ) from None


def _virtual_host(path: str) -> str:
    name = path.removeprefix("/")
    if "/" in name:
        raise UsageError(f"invalid virtual host {path!r}; write a slash in its name as %2F")
    return unquote(name) or "/"


def _credential(given: str | None, variable: str) -> str:
    """Return the credential of the URL, else of the environment, else RabbitMQ's default."""
    return unquote(given) if given else os.environ.get(variable, DEFAULT_CREDENTIAL)
