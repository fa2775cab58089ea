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
    Step(1, "stream-read", TASK, "events are read, and of a queue claimed; nobody else knows which"),
    Step(2, "stream-shuffled", TASK, "they are with the task that has their parts"),
    Step(3, "stream-opened", TASK, "a part is opened: the task's token is on it"),
    Step(4, "stream-entered", TASK, "they are entered in the inbox, or their offsets are; not committed"),
    Step(5, "stream-handled", TASK, "a handler has returned, others are to run; each is a passage"),
    Step(6, "stream-saved", TASK, "changed state is written; not committed"),
    Step(7, "stream-emitted", TASK, "emitted events are written beside it; not committed"),
    Step(8, "stream-before-commit", TASK, "everything is written; not committed"),
    Step(9, "stream-committed", TASK, "the part's transaction is committed, and nobody was told"),
    Step(10, "after-stage", TASK, "what was emitted is staged in the outbox, and not yet events there"),
    Step(11, "after-commit", TASK, "it is events in the outbox, and the part doesn't know that it is sent"),
    Step(12, "stream-before-acknowledgement", DRIVER, "all tasks have told their outcomes; the source knows none"),
    Step(13, "stream-in-acknowledgement", DRIVER, "the source knows half of the outcomes"),
    Step(14, "stream-acknowledged", DRIVER, "the source knows all outcomes, and Spark none of the batch"),
    Step(15, "stream-trimmed", TASK, "in a later batch, the inbox has forgotten what was acknowledged"),
)
