"""A stream in a process of its own, to be killed: sums by key, an event emitted for each, some that fail.

python stream_processes.py STORE STATE CORES
"""

import os
import subprocess
import sys
from pathlib import Path

from penstock import Streams
from penstock.streams.context import Context
from penstock.streams.event import StreamEvent

KEYS = 20


def application(store: str, state: str) -> Streams:
    app = Streams(store, state=state)

    @app.stream("orders", parts=4, retry_seconds=0.05)
    def total(event: StreamEvent, ctx: Context) -> None:
        order = event.json()
        ctx.state["sum"] = ctx.state.get("sum", 0) + order["amount"]
        ctx.emit("order.counted", {"number": order["number"]}, queue="counted")
        if order["number"] % 50 == 7:
            raise ValueError("never")
        if order["number"] % 50 == 8 and event.attempts == 0:
            raise ConnectionError("not yet")

    return app


def start(store: str, state: str, cores: int, crash: str = "") -> "subprocess.Popen[bytes]":
    environment = {**os.environ, "PENSTOCK_CRASH": crash, "PENSTOCK_SPARK_ARCHIVE": "off"}
    command = [sys.executable, str(Path(__file__)), store, state, str(cores)]
    return subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL, start_new_session=True)


if __name__ == "__main__":
    from penstock.pipeline.streaming import run_streams

    run_streams(application(sys.argv[1], sys.argv[2]), master=f"local[{sys.argv[3]}]")
