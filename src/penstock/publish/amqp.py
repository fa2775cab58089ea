"""The publishing half of AMQP 0-9-1, over pamqp's frames: a connection, its channel, and an answer for each message.

A client for everything costs a task and several futures a message. Here a batch is a few writes, and an answer is a
look into a list. What messages mean is left to the publisher.
"""

import asyncio
import ssl
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeVar

from pamqp import commands, frame
from pamqp.body import ContentBody
from pamqp.exceptions import PAMQPException
from pamqp.header import ContentHeader, ProtocolHeader
from pamqp.heartbeat import Heartbeat

CHANNEL = 1
FLUSH_BYTES = 262_144
USUAL_FRAME_MAX = 131_072
FRAME_OVERHEAD = 8
HEARTBEAT_SECONDS = 60
CLOSE_SECONDS = 1.0

CAPABILITIES = {
    "authentication_failure_close": True,
    "basic.nack": True,
    "connection.blocked": True,
    "publisher_confirms": True,
}

Method = TypeVar("Method", bound=frame.FrameTypes)


class LinkFailed(Exception):
    """The broker, or the way to it, failed; the message is what is known of the cause."""


class Login(NamedTuple):
    """Who enters which virtual host."""

    user: str
    password: str
    vhost: str


class Parcel(NamedTuple):
    """A message as it is sent: its frames, and the id by which the broker would return it."""

    message_id: str
    frames: bytes


class Answer(Enum):
    """What the broker made of a message."""

    CONFIRMED = "it has it, on disk where the queue is durable"
    REFUSED = "it did not take it: a nack"
    RETURNED = "no queue would have received it"


@dataclass(slots=True)
class _Batch:
    """What was sent under the delivery tags from `first_tag` on, and the answers so far, by place."""

    first_tag: int
    parcels: Sequence[Parcel]
    answers: list[Answer | None] = field(init=False)
    left: int = field(init=False)
    places: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.answers = [None] * len(self.parcels)
        self.left = len(self.parcels)

    def settle(self, tag: int, multiple: bool, answer: Answer) -> None:
        last = tag - self.first_tag
        for place in range(0 if multiple else last, last + 1):
            self._answer(place, answer)

    def give_back(self, message_id: str | None) -> None:
        """The acknowledgement that follows a return finds its place taken."""
        self.places = self.places or {parcel.message_id: place for place, parcel in enumerate(self.parcels)}
        self._answer(self.places.get(message_id or "", -1), Answer.RETURNED)

    def _answer(self, place: int, answer: Answer) -> None:
        if 0 <= place < len(self.answers) and self.answers[place] is None:
            self.answers[place] = answer
            self.left -= 1


class Link(asyncio.Protocol):
    """A connection that is used until its first failure, and then dropped."""

    def __init__(self, patience_seconds: float) -> None:
        self.failure: str | None = None
        self.blocked: str | None = None
        self.frame_max = USUAL_FRAME_MAX
        self.server_version = ""
        self._patience = patience_seconds
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._replies: asyncio.Queue[frame.FrameTypes | None] = asyncio.Queue()
        self._lost = asyncio.Event()
        self._moved = asyncio.Event()
        self._writable = True
        self._written = 0
        self._next_tag = 1
        self._batch: _Batch | None = None
        self._heartbeat_seconds = 0
        self._heard_at = self._loop.time()
        self._beat: asyncio.TimerHandle | None = None

    # What the publisher calls.

    async def open(self, login: Login) -> None:
        """The handshake, then a channel with confirms."""
        self._write(ProtocolHeader().marshal())
        start = await self._reply(commands.Connection.Start)
        self.server_version = str((start.server_properties or {}).get("version", ""))
        self._send(
            commands.Connection.StartOk(
                client_properties={"product": "penstock", "capabilities": dict(CAPABILITIES)},
                mechanism="PLAIN",
                response=f"\0{login.user}\0{login.password}",
                locale="en_US",
            ),
            channel=0,
        )
        self._tune(await self._reply(commands.Connection.Tune))
        self._send(commands.Connection.Open(virtual_host=login.vhost), channel=0)
        await self._reply(commands.Connection.OpenOk)
        self._send(commands.Channel.Open())
        await self._reply(commands.Channel.OpenOk)
        self._send(commands.Confirm.Select())
        await self._reply(commands.Confirm.SelectOk)

    async def publish(self, parcels: Sequence[Parcel]) -> list[Answer | None]:
        """Send all, then wait for the answers while they keep coming. None is left where `failure` came first."""
        batch = self._batch = _Batch(self._next_tag, parcels)
        self._next_tag += len(parcels)
        work = self._loop.create_task(self._carry(batch))
        while not work.done():
            before = self._progress(batch)
            await asyncio.wait([work], timeout=self._patience)
            if not work.done() and self._progress(batch) == before:
                self.drop(self._silence())
        self._batch = None
        return batch.answers

    def drop(self, why: str) -> None:
        self._fail(why)
        if self._transport is not None:
            self._transport.abort()

    async def close(self) -> None:
        """Take leave in good order, or without it if the broker doesn't answer soon."""
        if self.failure is None:
            self._send(commands.Connection.Close(reply_code=200, reply_text="done", class_id=0, method_id=0), channel=0)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._lost.wait(), CLOSE_SECONDS)
        await self.hang_up("closed")

    async def hang_up(self, why: str) -> None:
        """Hang up at once, and see the socket closed."""
        self.drop(why)
        if self._transport is not None:
            await self._lost.wait()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"the connection was lost: {exc}" if exc else "the broker hung up")
        if self._beat is not None:
            self._beat.cancel()
        self._lost.set()

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._moved.set()

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
        self._received += data
        try:
            for each in self._whole_frames():
                self._hear(each)
        except (PAMQPException, ValueError, struct.error, IndexError) as error:
            self.drop(f"what answers is no AMQP 0-9-1 broker: {error}")
        self._moved.set()

    # Sending.

    async def _carry(self, batch: _Batch) -> None:
        chunk: list[bytes] = []
        size = 0
        for parcel in batch.parcels:
            chunk.append(parcel.frames)
            size += len(parcel.frames)
            if size >= FLUSH_BYTES:
                self._write(b"".join(chunk))
                chunk, size = [], 0
                while not self._writable and self.failure is None:
                    await self._move()
        self._write(b"".join(chunk))
        while batch.left and self.failure is None:
            await self._move()

    async def _move(self) -> None:
        self._moved.clear()
        await self._moved.wait()

    def _send(self, method: frame.FrameTypes, channel: int = CHANNEL) -> None:
        self._write(frame.marshal(method, channel))

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._written += len(data)
            self._transport.write(data)

    def _progress(self, batch: _Batch) -> tuple[int, int]:
        assert self._transport is not None
        return batch.left, self._written - self._transport.get_write_buffer_size()

    def _silence(self) -> str:
        if self.blocked is not None:
            return f"the broker blocks publishers, {self.blocked}: it has raised an alarm, see `rabbitmqctl status`"
        return f"the broker did not answer within {self._patience:g} s"

    # Hearing.

    def _whole_frames(self) -> list[frame.FrameTypes]:
        received, start, frames = bytes(self._received), 0, []
        while len(received) - start >= FRAME_OVERHEAD:
            _, _, size = frame.frame_parts(received[start : start + FRAME_OVERHEAD])
            end = start + (size or 0) + FRAME_OVERHEAD
            if received[start : start + 4] != b"AMQP" and end > len(received):
                break
            consumed, _, one = frame.unmarshal(received[start:end])
            frames.append(one)
            start += consumed
        del self._received[:start]
        return frames

    def _hear(self, heard: frame.FrameTypes) -> None:
        match heard:
            case commands.Basic.Ack():
                self._settle(heard, Answer.CONFIRMED)
            case commands.Basic.Nack():
                self._settle(heard, Answer.REFUSED)
            case ContentHeader() if self._batch is not None:
                self._batch.give_back(heard.properties.message_id)
            case commands.Basic.Return() | ContentHeader() | ContentBody() | Heartbeat():
                pass  # a return says by its content's header which message it is
            case commands.Connection.Blocked():
                self.blocked = heard.reason or "low on resources"
            case commands.Connection.Unblocked():
                self.blocked = None
            case commands.Connection.Close() | commands.Channel.Close():
                self._dismissed(heard)
            case commands.Connection.CloseOk():
                self.drop("closed")
            case ProtocolHeader():
                self.drop("what answers speaks another version of AMQP than 0-9-1")
            case _:
                self._replies.put_nowait(heard)

    def _settle(self, heard: commands.Basic.Ack | commands.Basic.Nack, answer: Answer) -> None:
        if self._batch is not None:
            self._batch.settle(heard.delivery_tag or 0, bool(heard.multiple), answer)

    def _dismissed(self, heard: commands.Connection.Close | commands.Channel.Close) -> None:
        self._fail(heard.reply_text or f"the broker closed the channel with code {heard.reply_code}")
        if isinstance(heard, commands.Connection.Close):
            self._send(commands.Connection.CloseOk(), channel=0)
        else:
            self._send(commands.Channel.CloseOk())
        if self._transport is not None:
            self._transport.close()

    async def _reply(self, expected: type[Method]) -> Method:
        heard = None if self.failure else await self._replies.get()
        if isinstance(heard, expected):
            return heard
        raise LinkFailed(self.failure or f"the broker said {heard and heard.name} where AMQP has {expected.name}")

    def _fail(self, why: str) -> None:
        """The first cause is the one to tell."""
        if self.failure is None:
            self.failure = why
            self._replies.put_nowait(None)
            self._moved.set()

    # Tuning, and heartbeats.

    def _tune(self, offered: commands.Connection.Tune) -> None:
        self.frame_max = offered.frame_max or USUAL_FRAME_MAX
        self._heartbeat_seconds = min(offered.heartbeat or 0, HEARTBEAT_SECONDS)
        self._send(
            commands.Connection.TuneOk(
                channel_max=offered.channel_max, frame_max=self.frame_max, heartbeat=self._heartbeat_seconds
            ),
            channel=0,
        )
        self._pulse()

    def _pulse(self) -> None:
        """A sign of life twice in the time agreed; a broker that gave none for twice that time is gone."""
        if not self._heartbeat_seconds or self.failure is not None:
            return
        if self._loop.time() - self._heard_at > 2 * self._heartbeat_seconds:
            self.drop("the broker gave no sign of life")
            return
        self._send(Heartbeat(), channel=0)
        self._beat = self._loop.call_later(self._heartbeat_seconds / 2, self._pulse)


async def connect(host: str, port: int, tls: ssl.SSLContext | None, login: Login, patience_seconds: float) -> Link:
    """A link, ready to publish. It fails within `patience_seconds`."""
    link = Link(patience_seconds)
    try:
        async with asyncio.timeout(patience_seconds):
            await asyncio.get_running_loop().create_connection(lambda: link, host, port, ssl=tls)
            await link.open(login)
    except TimeoutError:
        await link.hang_up("not opened")
        raise LinkFailed(f"the broker did not answer within {patience_seconds:g} s") from None
    except BaseException:
        await link.hang_up("not opened")
        raise
    return link
