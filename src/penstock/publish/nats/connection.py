"""A connection to a NATS server: sends a batch at once and assigns each acknowledgement to its event.

nats-py connects, speaks the protocol and answers pings. There is no reconnect: a connection ends with its event loop,
and messages not yet on their way are never sent.
"""

import asyncio
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any

from nats.aio.client import Client, RawCredentials
from nats.aio.msg import Msg
from nats.errors import BadHeaderError, BadSubjectError
from nats.errors import Error as NatsError
from nats.js.api import StreamConfig
from nats.js.errors import NotFoundError

from penstock.model.errors import PublishError, UsageError
from penstock.model.outcome import Dead, Outcome, Retry
from penstock.publish.api import Message
from penstock.publish.event_loop import TrackingEventLoop
from penstock.publish.nats.message import message_size, outcome, subject_fault, wire_headers


@dataclass(frozen=True, slots=True)
class Access:
    """Addresses and credentials of a NATS cluster. Secrets are excluded from the repr."""

    hosts: tuple[str, ...]
    timeout_seconds: float
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    creds: str | None = None
    tls: ssl.SSLContext | None = None
    tls_first: bool = False
    stream: str | None = None
    subjects: tuple[str, ...] = ()


class _Client(Client):
    """nats-py's client, which also encrypts if the server offers TLS without requiring it.

    The overridden method is the only private one in use. If a release of nats-py no longer calls it, such a server is
    refused.
    """

    def _process_info(self, info: dict[str, Any], *arguments: Any, **named: Any) -> Any:
        if "tls" in self.options and info.get("tls_available"):
            info["tls_required"] = True
        return super()._process_info(info, *arguments, **named)


class Connection:
    """A single connection, without reconnect. It ends with its event loop, which cancels all sends and waits in
    progress.

    Each message has a reply subject with a unique number.
    """

    def __init__(self, access: Access) -> None:
        self._access = access
        self._client = _Client()
        self._inbox = ""
        self._numbers = 0
        self._waiting: dict[str, Message] = {}
        self._outcomes: dict[int, Outcome] = {}
        self._answered: asyncio.Future[None] | None = None
        self._problem: Exception | None = None

    @property
    def alive(self) -> bool:
        return self._client.is_connected

    async def open(self, host: str) -> None:
        """Connect to a host and subscribe to acknowledgements, within the host's share of the time-out."""
        try:
            async with asyncio.timeout(self._access.timeout_seconds / len(self._access.hosts)):
                await self._connect(host)
                await self._create_stream()
                await self._listen()
        except TimeoutError:
            raise PublishError(f"{host} did not answer") from None
        except NatsError as error:
            # The client's last error only says that no servers are left; the error reported before has the cause.
            raise PublishError(f"{host}: {_named(self._problem or error)}") from error
        except (PublishError, UsageError, OSError) as error:
            raise PublishError(f"{host}: {_named(error)}") from error

    async def carry(self, messages: Sequence[Message], outcomes: dict[int, Outcome]) -> None:
        """Send messages together and wait for all acknowledgements. Each outcome is stored in `outcomes` on arrival."""
        self._outcomes = outcomes
        self._answered = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(self._access.timeout_seconds):
                for message in messages:
                    await self._send(message)
                if self._waiting:
                    await self._answered
        except TimeoutError:
            raise PublishError(f"no acknowledgement within {self._access.timeout_seconds:g} s") from None
        except NatsError as error:
            raise PublishError(f"the connection ended: {_named(error)}") from error
        finally:
            self._waiting.clear()

    async def _send(self, message: Message) -> None:
        """Pass a message to the client, which writes once for the whole batch.

        A message that no server would accept becomes dead.
        """
        event = message.event
        headers = wire_headers(event)
        size, limit = message_size(headers, event.payload), self._client.max_payload
        fault = subject_fault(message.topic)
        if size > limit:
            fault = f"message of {size:,} bytes, headers included, exceeds the server's max_payload of {limit:,}"
        if fault:
            self._outcomes[event.seq] = Dead(fault)
            return
        self._numbers += 1
        number = str(self._numbers)
        self._waiting[number] = message
        try:
            await self._client.publish(message.topic, event.payload, f"{self._inbox}.{number}", headers)
        except (BadSubjectError, BadHeaderError) as error:
            del self._waiting[number]
            self._outcomes[event.seq] = Dead(f"the client rejected the message: {_named(error)}")

    async def _take(self, answer: Msg) -> None:
        """Process an acknowledgement. Late or unknown ones, which match no waiting message, are dropped."""
        message = self._waiting.pop(answer.subject.rpartition(".")[2], None)
        if message is not None:
            self._outcomes[message.event.seq] = outcome(message.topic, answer.data, answer.headers)
            self._settle()

    def _settle(self) -> None:
        if not self._waiting and self._answered is not None and not self._answered.done():
            self._answered.set_result(None)

    async def _connect(self, host: str) -> None:
        access = self._access
        await self._client.connect(
            [f"nats://{host}"],
            error_cb=self._hear,
            closed_cb=self._lose,
            name="penstock",
            connect_timeout=ceil(access.timeout_seconds),
            allow_reconnect=False,
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            # 0 means no limit: the client must not wait for the socket within a batch, because that wait cannot be
            # interrupted.
            pending_size=0,
            user=self._once_safe(access.username) if access.username else None,
            password=access.password,
            token=self._once_safe(access.token) if access.tls else access.token,
            user_credentials=read_credentials(access.creds) if access.creds else None,
            tls=access.tls,
            tls_handshake_first=access.tls_first,
        )
        self._require_safe()
        if not self.alive:
            raise PublishError("the server closed the connection")
        self._problem = None

    def _once_safe(self, secret: str | None) -> Callable[[], str]:
        """Return a callback that returns the secret, and raises if the URL asks for TLS and the connection has none.

        The client itself encrypts only if the server insists, and would otherwise send credentials unencrypted. It
        calls the callback while it prepares the command with all credentials, after TLS and before writing.
        """

        def give() -> str:
            self._require_safe()
            return secret or ""

        return give

    def _require_safe(self) -> None:
        loop = asyncio.get_running_loop()
        if self._access.tls is not None and not (isinstance(loop, TrackingEventLoop) and loop.encrypted):
            raise NatsError("the server does not offer TLS; use nats:// to connect without TLS")

    async def _listen(self) -> None:
        """Subscribe to acknowledgements, before the first message is published."""
        self._inbox = self._client.new_inbox()
        await self._client.subscribe(f"{self._inbox}.*", cb=self._take)
        # The ping of the first flush may overtake the subscription; the ping of the second cannot.
        await self._client.flush()
        await self._client.flush()
        if self._problem is not None:
            raise PublishError(f"cannot receive acknowledgements: {_named(self._problem)}")

    async def _create_stream(self) -> None:
        if self._access.stream is None:
            return
        streams = self._client.jetstream()
        try:
            await streams.stream_info(self._access.stream)
        except NotFoundError:
            config = StreamConfig(name=self._access.stream, subjects=list(self._access.subjects))
            await streams.add_stream(config)

    async def _hear(self, error: Exception) -> None:
        """Handle an error that the client reports asynchronously. A refused subject gets no other answer."""
        self._problem = error
        text = _named(error)
        if "permissions violation" not in text:
            return
        for number, message in list(self._waiting.items()):
            # The client reports errors in lower case.
            if f'"{message.topic.lower()}"' in text:
                del self._waiting[number]
                self._outcomes[message.event.seq] = Retry(
                    f"this user has no permission to publish to {message.topic!r}: {text}"
                )
        self._settle()

    async def _lose(self) -> None:
        if self._answered is not None and not self._answered.done():
            cause = self._client.last_error
            self._answered.set_exception(PublishError(f"the connection ended: {_named(cause) if cause else 'closed'}"))
            # Mark the exception as retrieved: possibly no coroutine is waiting for this future.
            self._answered.exception()


def read_credentials(path: str) -> RawCredentials:
    """Read and check a `.creds` file: the client would search for a missing section forever."""
    try:
        content = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the credentials file: {error}") from error
    for part in ("BEGIN NATS USER JWT", "BEGIN USER NKEY SEED"):
        if part not in content:
            raise UsageError(f"invalid credentials file {path}; missing line {part}")
    return RawCredentials(content)


def _named(error: Exception) -> str:
    """Return the error's text, or its type if the library gives no text."""
    text = str(error).removeprefix("nats: ").strip("'") or type(error).__name__
    return f"{text}; check the credentials" if "authorization" in text.lower() else text
