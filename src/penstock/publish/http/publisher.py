"""`https://` and `http://` post each event to a webhook, as a CloudEvent, signed if a secret is set.

Up to `concurrency` requests of a batch run at the same time. The format of an event is left to `cloudevents`, the
meaning of a response to `responses`, and the URL to `settings`.
"""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from datetime import UTC, datetime

import httpx

from penstock.model.outcome import PUBLISHED, RELEASED, Dead, Outcome, Retry
from penstock.publish.api import Message, Unpicklable
from penstock.publish.errors import error_text, presentable
from penstock.publish.event_loop import EventLoopThread
from penstock.publish.http.responses import failure
from penstock.publish.http.settings import HttpSettings, read_settings
from penstock.publish.http.signature import sign

BODY_BYTES = 4_096
# One connection per lane: httpx's pool would scan all of its connections at each request.
_ONE_CONNECTION = httpx.Limits(max_connections=1, max_keepalive_connections=1)


class HttpPublisher(Unpicklable):
    """Publisher of webhooks. Not `in_order`: concurrent requests may arrive in any order.

    A batch starts no request later than `timeout_seconds` after its own start, and releases the remaining events. An
    unresponsive receiver therefore costs two time-outs per batch, not one for every 32 events.
    """

    in_order = False

    def __init__(self, settings: HttpSettings) -> None:
        self._settings = settings
        self._background = EventLoopThread("penstock-http")
        self._lanes: list[httpx.AsyncHTTPTransport] = []

    def publish(self, messages: Sequence[Message]) -> dict[int, Outcome]:
        return self._background.run(self._publish(messages)) if messages else {}

    def close(self) -> None:
        if self._lanes:
            self._background.run(self._hang_up())
        self._background.close()

    async def _publish(self, messages: Sequence[Message]) -> dict[int, Outcome]:
        outcomes: dict[int, Outcome] = {}
        waiting = iter(messages)
        last_start = asyncio.get_running_loop().time() + self._settings.timeout_seconds
        async with asyncio.TaskGroup() as under_way:
            for lane in self._open_lanes(len(messages)):
                under_way.create_task(self._drive(lane, waiting, last_start, outcomes))
        return outcomes

    def _open_lanes(self, events: int) -> list[httpx.AsyncHTTPTransport]:
        wanted = min(events, self._settings.concurrency)
        while len(self._lanes) < wanted:
            lane = httpx.AsyncHTTPTransport(
                verify=self._settings.tls, proxy=self._settings.proxy, limits=_ONE_CONNECTION
            )
            self._lanes.append(lane)
        return self._lanes[:wanted]

    async def _hang_up(self) -> None:
        lanes, self._lanes = self._lanes, []
        for lane in lanes:
            await lane.aclose()

    async def _drive(
        self,
        lane: httpx.AsyncHTTPTransport,
        waiting: Iterator[Message],
        last_start: float,
        outcomes: dict[int, Outcome],
    ) -> None:
        """Send one request after the other, each for the next message that no other lane has taken."""
        clock = asyncio.get_running_loop().time
        for message in waiting:
            in_time = clock() < last_start
            outcomes[message.event.seq] = await self._attempt(lane, message) if in_time else RELEASED

    async def _attempt(self, lane: httpx.AsyncHTTPTransport, message: Message) -> Outcome:
        if not self._settings.has_place_for(message.topic):
            return Dead(f"topic {message.topic!r} cannot be part of a URL path; route the event to another topic")
        deadline = asyncio.get_running_loop().time() + self._settings.timeout_seconds
        try:
            async with asyncio.timeout_at(deadline):
                response = await lane.handle_async_request(self._request(message))
        except TimeoutError:
            waited = f"{self._settings.timeout_seconds:g} s"
            return Retry(f"{self._settings.origin} did not answer within {waited}")
        except Exception as error:  # any client error fails this event only
            return Retry(self._settings.mask(f"{self._settings.origin}: {_cause(error)}"))
        return self._meaning(response, await _beginning(response, deadline))

    def _request(self, message: Message) -> httpx.Request:
        settings = self._settings
        headers, body = settings.envelope(message, settings.source)
        event_id = str(message.event.event_id)
        headers += settings.headers
        headers.append(("idempotency-key", event_id))
        if settings.keys:
            timestamp = int(time.time())
            headers.append(("webhook-id", event_id))
            headers.append(("webhook-timestamp", str(timestamp)))
            headers.append(("webhook-signature", sign(settings.keys, event_id, timestamp, body)))
        return httpx.Request("POST", settings.url(message.topic), headers=headers, content=body)

    def _meaning(self, response: httpx.Response, body: bytes) -> Outcome:
        if response.is_success:
            return PUBLISHED
        # Some receivers echo the rejected request in the response, including its credentials.
        mask = self._settings.mask
        text = mask(body.decode(errors="replace"))
        failed = failure(response.status_code, response.reason_phrase, response.headers, text, datetime.now(UTC))
        return replace(failed, error=presentable(mask(failed.error)))


async def _beginning(response: httpx.Response, deadline: float) -> bytes:
    """Read the beginning of a response, as much as an error may show.

    Time-outs and connection errors are ignored: the status, which decides the outcome, is already known.
    """
    taken = b""
    with suppress(TimeoutError, httpx.HTTPError):
        # Leaving the block closes a connection whose response was not read completely.
        async with aclosing(response), asyncio.timeout_at(deadline):
            async for chunk in response.aiter_raw():
                taken += chunk
                if len(taken) >= BODY_BYTES:
                    break
    return taken


def _cause(error: BaseException) -> str:
    """Return the text of the innermost error. The outer ones only say that all connection attempts failed."""
    while True:
        inner = error.__cause__ or error.__context__
        if isinstance(error, BaseExceptionGroup):
            inner = error.exceptions[0]
        if inner is None or isinstance(inner, asyncio.CancelledError):
            return error_text(error)
        error = inner


def from_url(url: str) -> HttpPublisher:
    return HttpPublisher(read_settings(url))
