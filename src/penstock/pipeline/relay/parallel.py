"""Run several functions in threads, each until its stop event is set; if one fails, stop all and raise its error."""

import threading
from collections.abc import Callable, Sequence

Run = Callable[[threading.Event], None]
"""Function that runs until the event is set. It may set the event itself when it is done."""

_LOOK_SECONDS = 0.1


def run_all(runs: Sequence[Run], ending: threading.Event) -> None:
    """Run all functions, each with a separate stop event, until all are done or `ending` is set."""
    stops = [threading.Event() for _ in runs]
    failures: list[BaseException] = []

    def run(one: Run, stop: threading.Event) -> None:
        try:
            one(stop)
        except BaseException as error:
            failures.append(error)

    threads = [
        threading.Thread(target=run, args=pair, name=f"penstock-lane-{number}", daemon=True)
        for number, pair in enumerate(zip(runs, stops, strict=True))
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if failures or ending.wait(_LOOK_SECONDS):
            for stop in stops:
                stop.set()
            for thread in threads:
                thread.join()
    if failures:
        raise failures[0]
