"""Calls of a handler: arguments, middlewares, time limit, and the resulting outcome.

A middleware is a context manager that is entered with each event before the handler runs and left afterwards. Plain
context managers serve plain and async handlers alike; async handlers also accept async context managers.
"""

import asyncio
import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, ExitStack
from typing import Any

from penstock.model.errors import InvalidPayload, LeaseLost
from penstock.model.lifecycle import overdelivered
from penstock.model.outcome import RELEASED, Outcome
from penstock.model.text import brief, on_record
from penstock.telemetry import log
from penstock.worker.arguments import reader_of
from penstock.worker.options import AckPolicy, HandlerOptions
from penstock.worker.received import DecisionSink, Received

Function = Callable[..., Any]
Middleware = Callable[[Received], AbstractContextManager[Any] | AbstractAsyncContextManager[Any]]


class Handling:
    """A handler with its options and middlewares. Determines the outcome of each event; others record it."""

    def __init__(self, function: Function, options: HandlerOptions, middlewares: Sequence[Middleware]) -> None:
        self.function = function
        self.options = options
        self.is_async = inspect.iscoroutinefunction(function)
        self._middlewares = middlewares
        self._read = reader_of(function, batch=options.batch_size is not None)
        self._limit = options.timeout_seconds

    # -- call --------------------------------------------------------------------------------------------------

    def call(self, events: Sequence[Received]) -> BaseException | None:
        """Call a plain handler with the events; return its exception, or None."""
        try:
            arguments = self._read(events)
            if not self._middlewares:
                self.function(*arguments)
                return None
            with ExitStack() as around:
                for middleware in self._middlewares:
                    for event in events:
                        around.enter_context(_plain(middleware(event)))
                self.function(*arguments)
        except Exception as error:
            return error
        return None

    async def call_async(self, events: Sequence[Received]) -> BaseException | None:
        """Call an async handler with the events; return its exception, or None. A cancellation by others propagates."""
        try:
            arguments = self._read(events)
            if self._limit is None:
                await self._run(events, arguments)
            else:
                async with asyncio.timeout(self._limit):
                    await self._run(events, arguments)
        except TimeoutError as error:
            return TimeoutError(self.too_long()) if not str(error) else error
        except Exception as error:
            return error
        return None

    async def _run(self, events: Sequence[Received], arguments: tuple[Any, ...]) -> None:
        if not self._middlewares:
            await self.function(*arguments)
            return
        async with AsyncExitStack() as around:
            for middleware in self._middlewares:
                for event in events:
                    await _enter(around, middleware(event))
            await self.function(*arguments)

    def too_long(self) -> str:
        return f"the handler took longer than its limit of {self._limit:g} s"

    # -- outcome -----------------------------------------------------------------------------------------------

    def refusal(self, event: Received, sink: DecisionSink) -> Outcome | None:
        """Return a dead outcome for an event that was delivered too often, otherwise None.

        Checked before the call, because the event may kill this process.
        """
        most = self.options.max_deliveries
        if overdelivered(event.deliveries, most):
            return sink.rejected(f"delivered {event.deliveries} times, more than max_deliveries={most}")
        return None

    def outcome(self, event: Received, error: BaseException | None, sink: DecisionSink) -> Outcome | None:
        """Return the outcome of an event after its call; None if the event is settled or will be decided later."""
        if error is not None and event.decision != RELEASED:
            log.warn("handler_failed", queue=event.queue, event_id=event.event_id, error=brief(error))
        if event.settled:
            return None
        if event.decision is not None:
            return event.decision
        if isinstance(error, InvalidPayload):
            return sink.rejected(str(error))
        if isinstance(error, LeaseLost):
            return None
        match self.options.ack_policy:
            case AckPolicy.MANUAL if error is None:
                return None
            case AckPolicy.ACK | AckPolicy.ACK_FIRST:
                return sink.published(None)
            case AckPolicy.REJECT_ON_ERROR if error is not None:
                return sink.rejected(on_record(error))
            case _:
                return sink.published(None) if error is None else sink.failed(event, on_record(error))


def _plain(manager: Any) -> AbstractContextManager[Any]:
    if not hasattr(manager, "__enter__"):
        raise TypeError("a middleware of a plain handler must be a plain context manager, not an async one")
    entered: AbstractContextManager[Any] = manager
    return entered


async def _enter(around: AsyncExitStack, manager: Any) -> None:
    if hasattr(manager, "__aenter__"):
        await around.enter_async_context(manager)
    else:
        around.enter_context(manager)
