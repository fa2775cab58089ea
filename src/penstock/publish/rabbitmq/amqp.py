"""A connection to RabbitMQ through pika: sends a batch at once and returns an answer for each message.

pika's event loop runs in a background thread, which answers heartbeats between batches. The meaning of messages and
answers is left to the publisher.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from copy import copy
from typing import Any, NamedTuple

from pika import BasicProperties, ConnectionParameters, SelectConnection
from pika.adapters.select_connection import IOLoop
from pika.adapters.utils.selector_ioloop_adapter import SelectorIOServicesAdapter
from pika.exceptions import ChannelClosed, ConnectionClosed, IncompatibleProtocolError, StreamLostError

from penstock.publish.errors import error_text

CLOSE_SECONDS = 1.0
PIKA_SECONDS = 10.0

CONFIRMED = "confirmed"
REFUSED = "nack"


class OutgoingMessage(NamedTuple):
    """A message to send. Its `properties` must include a message id."""

    routing_key: str
    body: bytes
    properties: BasicProperties


class _Batch:
    """Messages with consecutive delivery tags from `first_tag` on, and their answers by index.

    An answer is CONFIRMED, REFUSED or the reason why the message was returned; None until it arrives.
    """

    def __init__(self, first_tag: int, outgoing: Sequence[OutgoingMessage]) -> None:
        self.outgoing = outgoing
        self.answers: list[str | None] = [None] * len(outgoing)
        self.left = len(outgoing)
        self.done: Future[None] = Future()
        self._first_tag = first_tag
        self._settled = 0
        self._places: dict[str, int] = {}

    def settle(self, tag: int, multiple: bool, answer: str) -> None:
        last = tag - self._first_tag
        for place in range(self._settled if multiple else last, last + 1):
            self._answer(place, answer)
        if multiple:
            self._settled = last + 1

    def note_return(self, message_id: str, reason: str) -> None:
        """Store the reason of a returned message as its answer. The acknowledgement that follows is ignored."""
        self._places = self._places or {one.properties.message_id: place for place, one in enumerate(self.outgoing)}
        self._answer(self._places.get(message_id, -1), reason)

    def end(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def _answer(self, place: int, answer: str) -> None:
        if 0 <= place < len(self.answers) and self.answers[place] is None:
            self.answers[place] = answer
            self.left -= 1
            if not self.left:
                self.end()


class _Services(SelectorIOServicesAdapter):  # type: ignore[misc]
    """pika's event loop, extended to expose the transport: a connection cannot be aborted, its transport can."""

    transport: Any = None

    def create_streaming_connection(
        self, protocol_factory: Any, sock: Any, on_done: Callable[[Any], None], *tls: Any, **named_tls: Any
    ) -> Any:
        def done(result: Any) -> None:
            if isinstance(result, tuple):
                self.transport = result[0]
            on_done(result)

        return super().create_streaming_connection(protocol_factory, sock, done, *tls, **named_tls)


class Link:
    """A connection that is discarded after its first failure.

    The publisher's thread calls the public methods; everything else runs in the connection's thread.
    """

    def __init__(self, parameters: ConnectionParameters, exchange: str) -> None:
        self.failure: str | None = None
        self.blocked: str | None = None
        self.frame_max = 0
        self.server_version = ""
        self._exchange = exchange
        self._timeout: float = parameters.stack_timeout
        # Let pika's time-outs expire after ours: if both expired together, either could be reported as the cause.
        parameters = copy(parameters)
        parameters.socket_timeout = parameters.stack_timeout = self._timeout + PIKA_SECONDS
        self._opened: Future[None] = Future()
        self._batch: _Batch | None = None
        self._next_tag = 1
        self._channel: Any = None
        self._loop = IOLoop()
        self._services = _Services(self._loop)
        self._connection = SelectConnection(
            parameters,
            on_open_callback=self._on_open,
            on_open_error_callback=self._on_closed,
            on_close_callback=self._on_closed,
            custom_ioloop=self._services,
        )
        self._thread = threading.Thread(target=self._run, name="rabbitmq", daemon=True)

    def open(self) -> None:
        """Connect and open a channel with publisher confirms, within the time-out. On an error, set `failure`."""
        self._thread.start()
        try:
            self._opened.result(self._timeout)
        except TimeoutError:
            self.failure = self.failure or self._timeout_cause()
        if self.failure is not None:
            self.abort(self.failure)

    def publish(self, outgoing: Sequence[OutgoingMessage]) -> list[str | None]:
        """Send all messages, and return the broker's answer to each; None for a message without an answer.

        The connection is aborted if no data was written and no answer arrived for the length of the time-out.
        """
        batch = _Batch(self._next_tag, outgoing)
        self._next_tag += len(outgoing)
        self._loop.add_callback_threadsafe(lambda: self._send(batch))
        before = None
        while not batch.done.done() and (now := self._progress(batch)) != before:
            before = now
            with suppress(TimeoutError):
                batch.done.result(self._timeout)
        if not batch.done.done():
            self.abort(self._timeout_cause())
        return batch.answers

    def close(self) -> None:
        """Close the connection cleanly, or abort if the broker doesn't answer within CLOSE_SECONDS."""
        if self._thread.is_alive():
            self._loop.add_callback_threadsafe(self._begin_close)
            self._thread.join(CLOSE_SECONDS)
        self.abort("closed")

    def abort(self, why: str) -> None:
        """Close the socket at once and discard unsent data."""
        self.failure = self.failure or why
        if self._thread.is_alive():
            self._loop.add_callback_threadsafe(self._abort)
            self._thread.join(CLOSE_SECONDS)

    # The methods below run in the connection's thread.

    def _run(self) -> None:
        try:
            self._loop.start()
        except Exception as error:
            self._fail(error_text(error))
        finally:
            self._loop.close()
            self._fail("the connection ended")

    def _on_open(self, connection: Any) -> None:
        self.frame_max = connection.params.frame_max
        self.server_version = str(connection.server_properties.get("version", ""))
        connection.add_on_connection_blocked_callback(self._on_blocked)
        connection.add_on_connection_unblocked_callback(self._on_unblocked)
        self._channel = connection.channel(on_open_callback=self._on_channel)

    def _on_channel(self, channel: Any) -> None:
        channel.add_on_close_callback(self._on_closed)
        channel.add_on_return_callback(self._on_return)
        channel.confirm_delivery(self._on_confirm, callback=lambda _: self._opened.set_result(None))

    def _send(self, batch: _Batch) -> None:
        self._batch = batch
        try:
            if self.failure is None:
                for message in batch.outgoing:
                    self._channel.basic_publish(self._exchange, *message, mandatory=True)
        except Exception as error:
            self._fail(error_text(error))
        if self.failure is not None:
            batch.end()

    def _on_confirm(self, frame: Any) -> None:
        if self._batch is not None:
            answer = CONFIRMED if frame.method.NAME == "Basic.Ack" else REFUSED
            self._batch.settle(frame.method.delivery_tag, frame.method.multiple, answer)

    def _on_return(self, _channel: Any, method: Any, properties: BasicProperties, _body: bytes) -> None:
        if self._batch is not None:
            self._batch.note_return(properties.message_id, method.reply_text)

    def _on_blocked(self, _connection: Any, frame: Any) -> None:
        self.blocked = frame.method.reason or "low on resources"

    def _on_unblocked(self, _connection: Any, _frame: Any) -> None:
        self.blocked = None

    def _on_closed(self, closed: Any, error: BaseException) -> None:
        """Handle the end of the channel or the connection."""
        self._fail(_cause(error))
        if closed is self._connection:
            self._loop.stop()

    def _begin_close(self) -> None:
        if not (self._connection.is_closing or self._connection.is_closed):
            self._connection.close()

    def _abort(self) -> None:
        self._begin_close()
        if self._services.transport is not None and not self._connection.is_closed:
            self._services.transport.abort()

    def _fail(self, why: str) -> None:
        """Keep the first cause, and end every wait."""
        self.failure = self.failure or why
        if not self._opened.done():
            self._opened.set_result(None)
        if self._batch is not None:
            self._batch.end()

    def _progress(self, batch: _Batch) -> tuple[int, int]:
        return batch.left, self._services.transport.get_write_buffer_size()

    def _timeout_cause(self) -> str:
        if self.blocked is not None:
            return f"the broker blocks publishers: {self.blocked}; see its alarms in `rabbitmqctl status`"
        return f"the broker did not answer within {self._timeout:g} s"


def _cause(error: BaseException) -> str:
    """Return the innermost cause: pika wraps the errors of its layers."""
    match error:
        case ConnectionClosed() | ChannelClosed():
            return str(error.reply_text or f"the broker closed the channel with code {error.reply_code}")
        case IncompatibleProtocolError():
            return f"the connection was lost before the broker had answered in AMQP 0-9-1: {error.args[0]}"
        case StreamLostError():
            return f"the connection was lost: {error}"
    inner = [*getattr(error, "exceptions", ())[-1:], getattr(error, "exception", None), *error.args[:1]]
    for cause in inner:
        if isinstance(cause, BaseException):
            return _cause(cause)
    return error_text(error)
