"""`valkey://` and `redis://` append events to streams, one stream per topic; `valkeys://` and `rediss://` with TLS.

A batch is pipelined without a transaction, so each event has its own reply. The client's own retries are off.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any
from urllib.parse import urlencode, urlsplit, urlunsplit

from valkey import Valkey
from valkey.backoff import NoBackoff
from valkey.exceptions import ReadOnlyError, ValkeyError
from valkey.retry import Retry as ClientRetry

from penstock.config.options import TLS_OPTIONS, known_options, timeout_option, uses_tls, whole_number
from penstock.config.urls import mask_url
from penstock.model.errors import UsageError
from penstock.model.event import Delivery
from penstock.model.outcome import PUBLISHED, Dead, Outcome, Retry
from penstock.publish.api import Message, Unpicklable
from penstock.publish.errors import error_text
from penstock.publish.fast_text import created_at_text, event_id_text

PIPELINE_LENGTH = 1_000
# The server's default limit. The server closes the connection when a value is larger, and the whole batch would fail.
DEFAULT_MAX_BYTES = 512 * 1024 * 1024

CLIENT_OPTIONS = TLS_OPTIONS | {"timeout_seconds"}


class ValkeyPublisher(Unpicklable):
    """Publisher for Valkey and Redis streams.

    Not `in_order`: the server may refuse one command of a pipeline, out of memory, and accept the next.
    """

    in_order = False

    def __init__(self, client: Valkey, *, maxlen: int | None = None, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self._client = client
        self._max_bytes = max_bytes
        self._trimming = () if maxlen is None else ("MAXLEN", "~", maxlen)

    def publish(self, messages: Sequence[Message]) -> dict[int, Outcome]:
        outcomes: dict[int, Outcome] = {
            message.event.seq: Dead(_too_large(message.event, self._max_bytes))
            for message in messages
            if len(message.event.payload) > self._max_bytes
        }
        if outcomes:
            messages = [message for message in messages if message.event.seq not in outcomes]
        try:
            for start in range(0, len(messages), PIPELINE_LENGTH):
                outcomes.update(self._append(messages[start : start + PIPELINE_LENGTH]))
        except (ValkeyError, OSError) as error:
            unanswered = Retry(error_text(error))
            return {message.event.seq: unanswered for message in messages} | outcomes
        return outcomes

    def close(self) -> None:
        self._client.connection_pool.disconnect()

    def _append(self, messages: Sequence[Message]) -> Iterator[tuple[int, Outcome]]:
        replies = self._replies(messages)
        if any(isinstance(reply, ReadOnlyError) for reply in replies):
            # The server became a replica: reconnect, so that the next batch resolves the address again.
            self.close()
        return zip((message.event.seq for message in messages), map(_outcome, replies), strict=True)

    def _replies(self, messages: Sequence[Message]) -> list[object]:
        pipeline: Any = self._client.pipeline(transaction=False)  # its methods have no types
        for message in messages:
            pipeline.execute_command("XADD", message.topic, *self._trimming, "*", *_fields(message.event))
        return replies_of(self._client, pipeline)


def _fields(event: Delivery) -> Iterable[str | bytes]:
    """Return the fields of the stream entry, names and values alternating, without keys that the event lacks."""
    fields: dict[str, str | bytes] = {
        "event_id": event_id_text(event),
        "event_type": event.event_type,
        "queue": event.queue,
        "payload": event.payload,
        "headers": json.dumps(dict(event.headers), ensure_ascii=False) if event.headers else "{}",
        "created_at": created_at_text(event),
    }
    if event.partition_key is not None:
        fields["partition_key"] = event.partition_key
    if event.ordering_key is not None:
        fields["ordering_key"] = event.ordering_key
    return chain.from_iterable(fields.items())


def _too_large(event: Delivery, limit: int) -> str:
    return f"payload of {len(event.payload):,} bytes exceeds max_bytes of {limit:,}"


def _outcome(reply: object) -> Outcome:
    if not isinstance(reply, Exception):
        return PUBLISHED
    if str(reply).startswith("WRONGTYPE"):
        return Dead(f"the topic's key is not a stream: {reply}")
    return Retry(error_text(reply))


def from_url(url: str) -> ValkeyPublisher:
    options = known_options(url, {"max_bytes", "maxlen", *CLIENT_OPTIONS})
    client = open_client(url, options)
    max_bytes = whole_number(options, "max_bytes") or DEFAULT_MAX_BYTES
    return ValkeyPublisher(client, maxlen=whole_number(options, "maxlen"), max_bytes=max_bytes)


def open_client(url: str, options: Mapping[str, str]) -> Valkey:
    """Return a client for the URL's server, not yet connected.

    Of `options`, only time-out and TLS settings are used.
    """
    timeout_seconds = timeout_option(options)
    tls = {name: value for name, value in options.items() if name in TLS_OPTIONS}
    parts = urlsplit(url)
    if not re.fullmatch(r"/?\d*", parts.path):
        raise UsageError(f"invalid URL {mask_url(url)}; expected a database number as the path, such as /0")
    # The client would apply every option of the URL as its own.
    bare = urlunsplit(parts._replace(query=urlencode(tls)))
    # By default the client accepts a trusted certificate of any host name. Its connections without TLS reject the
    # option.
    checks: dict[str, Any] = {"ssl_check_hostname": True} if uses_tls(parts.scheme, options) else {}
    try:
        return Valkey.from_url(
            bare,
            **checks,
            socket_timeout=timeout_seconds,
            socket_connect_timeout=timeout_seconds,
            retry=ClientRetry(NoBackoff(), 0),
        )
    except ValueError as error:
        raise UsageError(f"invalid URL {mask_url(url)}: {error}") from error


def replies_of(client: Valkey, pipeline: Any) -> list[object]:
    """Return the server's replies to a pipeline, errors included."""
    try:
        replies: list[object] = pipeline.execute(raise_on_error=False)
    except BaseException:
        # An unread reply must never be taken for a reply to the next batch.
        client.connection_pool.disconnect()
        raise
    return replies
