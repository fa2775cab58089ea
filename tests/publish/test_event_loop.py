"""Event loops in background threads, for asyncio clients."""

import asyncio
import threading

import pytest

from penstock.publish.event_loop import EventLoopThread


async def answer(value: int) -> int:
    await asyncio.sleep(0)
    return value


async def fail() -> None:
    raise ValueError("no")


def test_coroutine_result_is_returned() -> None:
    background = EventLoopThread("test")
    assert [background.run(answer(number)) for number in range(3)] == [0, 1, 2]
    background.close()


def test_coroutine_exception_is_raised() -> None:
    background = EventLoopThread("test")
    with pytest.raises(ValueError, match="no"):
        background.run(fail())
    background.close()


def test_tasks_continue_between_calls() -> None:
    background = EventLoopThread("test")
    done = threading.Event()

    async def later() -> None:
        await asyncio.sleep(0)
        done.set()

    async def start() -> asyncio.Task[None]:
        return asyncio.ensure_future(later())

    task = background.run(start())
    assert done.wait(60)
    assert task is not None
    background.close()


def test_close_cancels_tasks_and_may_be_repeated() -> None:
    background = EventLoopThread("test")
    cancelled = threading.Event()

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async def start() -> asyncio.Task[None]:
        task = asyncio.ensure_future(forever())
        await asyncio.sleep(0)
        return task

    assert background.run(start()) is not None
    background.close()
    assert cancelled.is_set()
    background.close()
    assert background.run(answer(1)) == 1
    background.close()
