"""Numbered steps of the exactly-once protocol of streams, from reading the source to the acknowledgement.

The only definition of the steps: the crash simulator kills at each of them, tests iterate over them, and a test checks
that docs/internals/reliability.md lists them unchanged.
"""

from typing import NamedTuple

TASK = "task"
DRIVER = "driver"


class Step(NamedTuple):
    """A crash point in the processing of a micro-batch."""

    number: int
    point: str
    where: str
    what: str


STEPS = (
    Step(1, "stream-read", TASK, "events are read (from a queue: claimed); only this task has them"),
    Step(2, "stream-shuffled", TASK, "the events have reached the task that has their state partition"),
    Step(3, "stream-opened", TASK, "a state partition is opened under the task's token"),
    Step(4, "stream-entered", TASK, "inbox keys or offsets of the events are written; not committed"),
    Step(5, "stream-handled", TASK, "a handler has returned, the next one has not run; each handler call is a passage"),
    Step(6, "stream-saved", TASK, "changed state is written; not committed"),
    Step(7, "stream-emitted", TASK, "emitted events are written beside the state; not committed"),
    Step(8, "stream-before-commit", TASK, "all changes of the transaction are written; not committed"),
    Step(9, "stream-committed", TASK, "the state partition's transaction is committed; the driver has no result yet"),
    Step(10, "after-stage", TASK, "emitted events are staged in the outbox; not yet committed as events"),
    Step(11, "after-commit", TASK, "emitted events are in the outbox; the state partition has not recorded this yet"),
    Step(12, "stream-before-acknowledgement", DRIVER, "the driver has all task results; the source has no outcome yet"),
    Step(13, "stream-in-acknowledgement", DRIVER, "the source has half of the outcomes"),
    Step(14, "stream-acknowledged", DRIVER, "the source has all outcomes; Spark has not recorded the batch yet"),
    Step(15, "stream-trimmed", TASK, "in a later batch, acknowledged events are removed from the inbox"),
)
