"""A connection to a NATS server: it sends a batch at once, and takes each answer to the event that waits for it.

nats-py makes the connection, speaks the protocol and answers pings. Where it would do more than one attempt, it is
kept from it here: what is not on its way when a connection ends is never sent.
"""

import asyncio
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any

from nats.aio.client import Client, RawCredentials
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js.api import StreamConfig
from nats.js.errors import NotFoundError

from penstock.errors import PublishError, UsageError
from penstock.lifecycle import Dead, Outcome, Retry
from penstock.publish.base import Message
from penstock.publish.nats_wire import header_block, outcome, subject_fault


@dataclass(frozen=True, slots=True)
class Access:
    """How to get to a server, and in. Secrets stay out of its repr."""

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
    """nats-py's client, without its fallback to no TLS, and without last words."""

    encrypted = False

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        # The client itself encrypts only if the server insists, and else tells its password to anyone.
        if initial_connection and self.encrypted and not self.options["tls_handshake_first"]:
            if not (info.get("tls_required") or info.get("tls_available")):
                raise NatsError("the server offers no TLS; without it the URL begins with nats://")
            info["tls_required"] = True
        await super()._process_info(info, initial_connection)

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        if self._flush_queue is None:
            return  # it never began to connect
        # The client itself would send what is left first, wait for a server that hangs, and after a failed TLS
        # handshake wait for ever.
        self._pending, self._pending_data_size = [], 0
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            writer.transport.abort()
        self._transport = None
        await super()._close(status, do_cbs)

    async def catch_up(self) -> None:
        """Wait until the server has answered for all that was sent so far."""
        # The ping of `flush` would overtake what still waits to be written.
        await self._flush_pending(force_flush=True)
        await self.flush()

    async def send(self, commands: bytes) -> None:
        """Many commands at once: half the cost of `publish` for each."""
        await self._send_command(commands)
        await self._flush_pending()


class Connection:
    """One connection for as long as it lasts. Who waits for an answer has a number that none had before."""

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
        """Connect and get ready for answers. After a failure nothing is left of it."""
        try:
            await self._connect(host)
            await self._create_stream()
            await self._listen()
        except BaseException as error:
            await self.close()
            if isinstance(error, NatsError):
                # That no server is left says nothing; what was wrong with the only one was reported before.
                raise PublishError(_named(self._problem or error)) from error
            raise

    async def close(self) -> None:
        """At once, whatever is under way. May be called twice."""
        await self._client.close()

    async def carry(self, messages: Sequence[Message], outcomes: dict[int, Outcome]) -> None:
        """Send these together. Each answer goes into `outcomes` as it comes; returns when all are there."""
        self._outcomes = outcomes
        self._answered = asyncio.get_running_loop().create_future()
        commands = b"".join([self._command(message) for message in messages])
        if not self._waiting:
            return
        await self._client.send(commands)
        try:
            async with asyncio.timeout(self._access.timeout_seconds):
                await self._answered
        except TimeoutError:
            raise PublishError(f"no acknowledgement within {self._access.timeout_seconds:g} s") from None
        finally:
            self._waiting.clear()

    def _command(self, message: Message) -> bytes:
        """What sends the message; nothing for one that the server would never take."""
        event = message.event
        head = header_block(event)
        size, limit = len(head) + len(event.payload), self._client.max_payload
        fault = subject_fault(message.topic)
        if size > limit:
            fault = f"too large: {size:,} bytes with its headers, and the server's max_payload is {limit:,}"
        if fault:
            self._outcomes[event.seq] = Dead(fault)
            return b""
        self._numbers += 1
        self._waiting[str(self._numbers)] = message
        line = f"HPUB {message.topic} {self._inbox}.{self._numbers} {len(head)} {size}\r\n"
        return b"%b%b%b\r\n" % (line.encode(), head, event.payload)

    async def _take(self, answer: Msg) -> None:
        """An answer. Those that nobody waits for, late or strange, are dropped."""
        message = self._waiting.pop(answer.subject.rpartition(".")[2], None)
        if message is not None:
            self._outcomes[message.event.seq] = outcome(message.topic, answer.data, answer.headers)
            self._settle()

    def _settle(self) -> None:
        if not self._waiting and self._answered is not None and not self._answered.done():
            self._answered.set_result(None)

    async def _connect(self, host: str) -> None:
        access = self._access
        self._client.encrypted = access.tls is not None
        await self._client.connect(
            [f"nats://{host}"],
            error_cb=self._hear,
            closed_cb=self._lose,
            name="penstock",
            connect_timeout=ceil(access.timeout_seconds),
            allow_reconnect=False,
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            # No limit, and so no waiting for the socket in the middle of a batch, which could not be interrupted.
            pending_size=0,
            tls=access.tls,
            tls_handshake_first=access.tls_first,
            user=access.username,
            password=access.password,
            token=access.token,
            user_credentials=read_credentials(access.creds) if access.creds else None,
        )
        if not self.alive:
            raise PublishError("the server hung up")
        self._problem = None

    async def _listen(self) -> None:
        """Get ready for answers, before anything is published that they could be missing for."""
        self._inbox = self._client.new_inbox()
        await self._client.subscribe(f"{self._inbox}.*", cb=self._take)
        await self._client.catch_up()
        if self._problem is not None:
            raise PublishError(f"no acknowledgements can be received: {_named(self._problem)}")

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
        """What the client reports while it runs. A refused subject has no other answer than this."""
        self._problem = error
        text = _named(error)
        if "permissions violation" not in text:
            return
        for number, message in list(self._waiting.items()):
            # The client reports everything in lower case.
            if f'"{message.topic.lower()}"' in text:
                del self._waiting[number]
                self._outcomes[message.event.seq] = Retry(f"this user may not publish here: {text}")
        self._settle()

    async def _lose(self) -> None:
        if self._answered is not None and not self._answered.done():
            cause = self._client.last_error
            self._answered.set_exception(PublishError(f"the connection ended: {_named(cause) if cause else 'closed'}"))
            # Nobody may be waiting any more, and that is no error.
            self._answered.exception()


async def connect(access: Access) -> Connection:
    """To the first of the hosts that answers, each tried once and given its share of the time."""
    problems = []
    for host in access.hosts:
        connection = Connection(access)
        try:
            async with asyncio.timeout(access.timeout_seconds / len(access.hosts)):
                await connection.open(host)
            return connection
        except TimeoutError:
            problems.append(f"{host} doesn't answer")
        except (PublishError, UsageError, OSError) as error:
            problems.append(f"{host}: {_named(error)}")
    raise PublishError("no connection to NATS: " + "; ".join(problems))


def read_credentials(path: str) -> RawCredentials:
    """A `.creds` file. It is checked, because the client would look for what is missing for ever."""
    try:
        content = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the credentials can't be read: {error}") from error
    for part in ("BEGIN NATS USER JWT", "BEGIN USER NKEY SEED"):
        if part not in content:
            raise UsageError(f"{path} is no file of credentials: it has no line with {part}")
    return RawCredentials(content)


def _named(error: Exception) -> str:
    """The error in words; some of the library's have none but their type's."""
    text = str(error).removeprefix("nats: ").strip("'") or type(error).__name__
    return f"{text}; check the credentials" if "authorization" in text.lower() else text
