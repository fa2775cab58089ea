"""An asyncio event loop in a background thread, so that clients can answer a broker's pings between batches."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

Result = TypeVar("Result")


class TrackingEventLoop(asyncio.SelectorEventLoop):
    """An event loop that keeps track of its connections.

    Client libraries offer no way to abort a connection, or to see whether a connection is encrypted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.encrypted = False
        """True if the last connection has been upgraded to TLS."""
        self._connections: list[asyncio.WriteTransport] = []

    async def create_connection(self, *arguments: Any, **named: Any) -> Any:
        self.encrypted = False
        transport, protocol = await super().create_connection(*arguments, **named)
        self._connections = [one for one in self._connections if not one.is_closing()]
        self._connections.append(transport)
        return transport, protocol

    async def start_tls(self, *arguments: Any, **named: Any) -> Any:
        transport = await super().start_tls(*arguments, **named)
        self.encrypted = True
        return transport

    async def abort(self) -> None:
        """Close every connection without sending buffered data, and cancel all other tasks."""
        for transport in self._connections:
            transport.abort()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        # A protocol is notified of the closed connection in the loop's next iteration, a protocol above TLS one
        # iteration later.
        for _ in range(2):
            await asyncio.sleep(0)


class EventLoopThread:
    """A thread with an event loop. Starts with the first call of `run`, in the calling process, and ends with `close`.

    Must not be pickled.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: TrackingEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine and return its result or raise its exception. An interrupted wait cancels the coroutine."""
        future: Future[Result] = asyncio.run_coroutine_threadsafe(work, self._running())
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Abort the running tasks and stop the loop. May be called twice, and before any `run`."""
        if self._loop is None or self._thread is None:
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop = self._thread = None

    def _running(self) -> TrackingEventLoop:
        if self._loop is None:
            self._loop = TrackingEventLoop()
            self._thread = threading.Thread(target=_serve, args=[self._loop], name=self._name, daemon=True)
            self._thread.start()
        return self._loop


def _serve(loop: TrackingEventLoop) -> None:
    try:
        loop.run_forever()
        loop.run_until_complete(loop.abort())
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()
