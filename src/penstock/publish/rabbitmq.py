"""`amqp://` and `amqps://` publish events to RabbitMQ: persistent, confirmed, and returned where no queue takes them.

A batch is in flight together, and each event has its own answer. After a failure the next batch connects anew.
"""

import os
import re
import ssl
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from pamqp import commands, frame
from pamqp.body import ContentBody
from pamqp.common import FieldTable
from pamqp.header import ContentHeader

from penstock.errors import UsageError
from penstock.event import CONTENT_TYPE, Delivery
from penstock.lifecycle import PUBLISHED, Dead, Outcome, Retry
from penstock.publish.amqp import CHANNEL, FRAME_OVERHEAD, Answer, Link, LinkFailed, Login, Parcel, connect
from penstock.publish.background import Background
from penstock.publish.base import Message
from penstock.publish.failure import error_text, storable
from penstock.publish.options import known_options, seconds, whole_number
from penstock.publish.unpicklable import Unpicklable

DEFAULT_TIMEOUT_SECONDS = 5.0
USERNAME_VARIABLE = "PENSTOCK_AMQP_USERNAME"
PASSWORD_VARIABLE = "PENSTOCK_AMQP_PASSWORD"  # noqa: S105
DEFAULT_CREDENTIAL = "guest"
PORTS = {"amqp": 5672, "amqps": 5671}

QUEUE_HEADER = "penstock-queue"
CREATED_AT_HEADER = "penstock-created-at"
PARTITION_KEY_HEADER = "penstock-partition-key"
ORDERING_KEY_HEADER = "penstock-ordering-key"
OWN_HEADERS = frozenset({QUEUE_HEADER, CREATED_AT_HEADER, PARTITION_KEY_HEADER, ORDERING_KEY_HEADER})
# RabbitMQ takes these for lists of further routing keys, and closes the channel when they are text.
ROUTING_HEADERS = frozenset({"CC", "BCC"})

PERSISTENT = 2
SHORT_BYTES = 255
HEADER_NAME_BYTES = 128
# A server that is configured otherwise says so when it first refuses a message.
MESSAGE_BYTES = 134_217_728
MESSAGE_BYTES_FROM_4 = 16_777_216
_SERVERS_LIMIT = re.compile(r"message size \d+ is larger than configured max size (\d+)")

_TLS_OPTIONS = frozenset({"ssl_ca_certs", "ssl_certfile", "ssl_keyfile"})


class Unsendable(Exception):
    """An event that no RabbitMQ would take, and why."""


@dataclass(frozen=True, slots=True)
class Broker:
    """Where the broker is, and how to enter."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    login: Login
    timeout_seconds: float

    async def connect(self) -> Link:
        return await connect(self.host, self.port, self.tls, self.login, self.timeout_seconds)


class RabbitPublisher(Unpicklable):
    """Not `in_order`: the broker may refuse one message of a batch and take the next."""

    in_order = False

    def __init__(self, broker: Broker, *, exchange: str = "", max_message_bytes: int | None = None) -> None:
        self._broker = broker
        self._exchange = exchange
        self._limit = max_message_bytes
        self._link: Link | None = None
        self._background = Background("rabbitmq")

    def publish(self, messages: Sequence[Message]) -> dict[int, Outcome]:
        if not messages:
            return {}
        try:
            return self._background.run(self._publish(messages))
        except BaseException:
            # An interrupt may find the work anywhere, even not begun: the next batch must not be on its line.
            self._leave(lambda link: link.hang_up("interrupted"))
            raise

    def close(self) -> None:
        self._leave(Link.close)
        self._background.close()

    def _leave(self, how: Callable[[Link], Coroutine[Any, Any, None]]) -> None:
        link, self._link = self._link, None
        if link is not None:
            self._background.run(how(link))

    async def _publish(self, messages: Sequence[Message]) -> dict[int, Outcome]:
        try:
            link = await self._connected()
        except (LinkFailed, OSError) as error:
            return dict.fromkeys((message.event.seq for message in messages), Retry(_failed_entry(error)))
        return await self._send(link, messages)

    async def _connected(self) -> Link:
        if self._link is not None and self._link.failure is None:
            return self._link
        self._link = None
        self._link = await self._broker.connect()
        return self._link

    async def _send(self, link: Link, messages: Sequence[Message]) -> dict[int, Outcome]:
        packing = _Packing(self._exchange, self._limit or _usual_limit(link.server_version), link.frame_max)
        outcomes: dict[int, Outcome] = {}
        parcels = []
        sent = []
        for message in messages:
            try:
                parcels.append(packing.parcel(message))
                sent.append(message)
            except Unsendable as reason:
                outcomes[message.event.seq] = Dead(storable(reason))
        answers = await link.publish(parcels) if parcels else []
        if link.failure is not None:
            self._learn_limit(link.failure)
            await link.hang_up("failed")
        for message, answer in zip(sent, answers, strict=True):
            outcomes[message.event.seq] = self._outcome(message, answer, link.failure)
        return outcomes

    def _outcome(self, message: Message, answer: Answer | None, failure: str | None) -> Outcome:
        match answer:
            case Answer.CONFIRMED:
                return PUBLISHED
            case Answer.REFUSED:
                return Retry(
                    f"RabbitMQ refused it (nack): the queue behind {self._way(message)} is full or unavailable"
                )
            case Answer.RETURNED:
                return Retry(f"NO_ROUTE: no queue is bound to {self._way(message)}")
            case None if self._limit is not None and len(message.event.payload) > self._limit:
                return Dead(_too_large(message.event, self._limit))
            case None:
                return Retry(storable(failure))

    def _way(self, message: Message) -> str:
        exchange = f"exchange {self._exchange!r}" if self._exchange else "the default exchange"
        return f"{exchange} with routing key {message.topic!r}"

    def _learn_limit(self, failure: str) -> None:
        """One message too large closes the channel under all: let it be the last that gets so far."""
        if told := _SERVERS_LIMIT.search(failure):
            self._limit = int(told[1])


@dataclass(slots=True)
class _Packing:
    """Makes parcels of messages, or says why one can't be sent: each would cost the others their channel."""

    exchange: str
    message_bytes: int
    frame_max: int

    def parcel(self, message: Message) -> Parcel:
        event = message.event
        if len(event.payload) > self.message_bytes:
            raise Unsendable(_too_large(event, self.message_bytes))
        _require_short("the topic", message.topic)
        _require_short("the event type", event.event_type)
        message_id = str(event.event_id)
        method = commands.Basic.Publish(exchange=self.exchange, routing_key=message.topic, mandatory=True)
        frames = [frame.marshal(method, CHANNEL), self._header(event, message_id), *self._body(event.payload)]
        return Parcel(message_id, b"".join(frames))

    def _header(self, event: Delivery, message_id: str) -> bytes:
        properties = commands.Basic.Properties(
            content_type=_content_type(event.headers),
            headers=_headers(event),
            delivery_mode=PERSISTENT,
            message_id=message_id,
            timestamp=event.created_at,
            message_type=event.event_type,
        )
        header = frame.marshal(ContentHeader(body_size=len(event.payload), properties=properties), CHANNEL)
        if len(header) > self.frame_max:
            raise Unsendable(f"its headers take {len(header):,} bytes, and this broker takes {self.frame_max:,}")
        return header

    def _body(self, payload: bytes) -> list[bytes]:
        step = self.frame_max - FRAME_OVERHEAD
        pieces = [payload[start : start + step] for start in range(0, len(payload), step)]
        return [frame.marshal(ContentBody(piece), CHANNEL) for piece in pieces]


def _headers(event: Delivery) -> FieldTable:
    headers: FieldTable = {QUEUE_HEADER: event.queue, CREATED_AT_HEADER: event.created_at.isoformat()}
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
        raise Unsendable(f"its header {name!r} has a name that Penstock uses for itself in RabbitMQ")
    if name in ROUTING_HEADERS:
        raise Unsendable(f"its header {name!r} has a name that RabbitMQ takes for a list of routing keys")
    if len(name.encode()) > HEADER_NAME_BYTES:
        raise Unsendable(f"its header {name!r} has a name of more than the {HEADER_NAME_BYTES} bytes that AMQP allows")


def _require_short(what: str, text: str) -> None:
    if len(text.encode()) > SHORT_BYTES:
        raise Unsendable(f"{what} {text!r} is longer than the {SHORT_BYTES} bytes that AMQP allows")


def _content_type(headers: Mapping[str, str]) -> str | None:
    """The property has room for 255 bytes; the header that it is taken from goes along in any case."""
    found = next((value for name, value in headers.items() if name.lower() == CONTENT_TYPE), None)
    return found if found and len(found.encode()) <= SHORT_BYTES else None


def _too_large(event: Delivery, limit: int) -> str:
    return f"its payload of {len(event.payload):,} bytes is too large: this broker takes {limit:,} (max_message_size)"


def _usual_limit(server_version: str) -> int:
    major = server_version.partition(".")[0]
    return MESSAGE_BYTES_FROM_4 if major.isdecimal() and int(major) >= 4 else MESSAGE_BYTES


def _failed_entry(error: Exception) -> str:
    return storable(error) if isinstance(error, LinkFailed) else error_text(error)


def from_url(url: str) -> RabbitPublisher:
    known = {"exchange", "max_message_bytes", "timeout_seconds"}
    secure = url.lower().startswith("amqps:")
    parts = urlsplit(url)
    port = _port(parts)
    options = known_options(url, known | _TLS_OPTIONS if secure else known)
    broker = Broker(
        host=parts.hostname or "localhost",
        port=port,
        tls=_tls(options) if secure else None,
        login=_login(parts),
        timeout_seconds=seconds(options, "timeout_seconds", DEFAULT_TIMEOUT_SECONDS),
    )
    exchange = options.get("exchange", "")
    try:
        commands.Basic.Publish(exchange=exchange)
    except ValueError as error:
        raise UsageError(f"exchange={exchange} can't be an exchange's name: {error}") from error
    return RabbitPublisher(broker, exchange=exchange, max_message_bytes=whole_number(options, "max_message_bytes"))


def _port(parts: SplitResult) -> int:
    try:
        return parts.port or PORTS[parts.scheme]
    except ValueError:
        # What stands in the port's place may be part of a password: it is not shown.
        raise UsageError(
            f"this {parts.scheme}: URL can't be understood: its port is no number, or its password holds one of /?#@ "
            "that is not written as %2F, %3F, %23 or %40"
        ) from None


def _login(parts: SplitResult) -> Login:
    """From the URL, else from the environment, else RabbitMQ's own default."""
    path = parts.path.removeprefix("/")
    if "/" in path:
        raise UsageError(f"{parts.path} is no virtual host: a slash in its name is written %2F")
    return Login(
        user=_credential(parts.username, USERNAME_VARIABLE),
        password=_credential(parts.password, PASSWORD_VARIABLE),
        vhost=unquote(path) or "/",
    )


def _credential(given: str | None, variable: str) -> str:
    return unquote(given) if given else os.environ.get(variable, DEFAULT_CREDENTIAL)


def _tls(options: Mapping[str, str]) -> ssl.SSLContext:
    """The server's certificate and name are always checked."""
    if "ssl_keyfile" in options and "ssl_certfile" not in options:
        raise UsageError("ssl_keyfile is the key to a certificate: give ssl_certfile too")
    try:
        context = ssl.create_default_context(cafile=options.get("ssl_ca_certs"))
        if "ssl_certfile" in options:
            context.load_cert_chain(options["ssl_certfile"], options.get("ssl_keyfile"))
    except OSError as error:
        given = ", ".join(f"{name}={options[name]}" for name in sorted(_TLS_OPTIONS & options.keys()))
        raise UsageError(f"the certificates can't be read ({given}): {error}") from error
    return context
