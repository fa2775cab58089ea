"""`kafka://` produces events to Kafka's topics; `kafkas://` with TLS.

The producer is idempotent: the broker drops duplicates when the client resends within a call. Each call ends with a
report for every event or with a time-out. Nothing of the batch stays queued after the call.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from penstock.model.event import Delivery
from penstock.model.outcome import PUBLISHED, Dead, Outcome, Retry
from penstock.publish.api import Message, Unpicklable
from penstock.publish.errors import presentable
from penstock.publish.fast_text import created_at_text, event_id_text
from penstock.publish.kafka.settings import Settings, settings_of

# Seconds that the client may take to report on purged messages.
PURGE_SECONDS = 1.0

# For an invalid name, the broker reports an invalid topic, or the client reports an unknown one before it has asked the
# broker.
_TOPIC_NAME = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")
_INVALID_TOPIC = "invalid topic name; expected up to 249 letters, digits, dots, hyphens and underscores"

_Errors = dict[int, KafkaError]
"""Errors by the event's seq."""

_UNANSWERED = frozenset({KafkaError._MSG_TIMED_OUT, KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})
_USED_UP = _UNANSWERED | {KafkaError._FATAL}
_NO_SUCH_TOPIC = frozenset({KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART})
_OF_THE_TOPIC = _NO_SUCH_TOPIC | {KafkaError.TOPIC_AUTHORIZATION_FAILED}
# Final for an event that was alone in its request. In a request of several events, the client reports the error for
# each of them, whichever event the broker refused.
_FINAL_ALONE = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_RECORD})
_OF_THE_REQUEST = _FINAL_ALONE | {KafkaError._INVALID_DIFFERENT_RECORD}
_FINAL = _FINAL_ALONE | {KafkaError.TOPIC_EXCEPTION, KafkaError._INVALID_ARG}


class KafkaPublisher(Unpicklable):
    """Publisher for Kafka. Not `in_order`.

    A partition keeps its order, but after an event that the broker refuses or that times out, the client continues with
    the later ones. An event's partition key can also place it in another partition than its ordering key. The
    dispatcher therefore sends one event of an ordering key at a time.
    """

    in_order = False

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._producer: Producer | None = None
        self._spent = False
        self._cause = ""
        self._doubtful: set[str] = set()

    def publish(self, messages: Sequence[Message]) -> dict[int, Outcome]:
        if not messages:
            return {}
        self._cause = ""
        deadline = monotonic() + self._settings.timeout_seconds
        try:
            errors = self._send_all(messages, deadline)
        except BaseException:
            # Purge the queued messages: they must not be sent after this call has failed.
            self.close()
            raise
        if self._spent:
            self.close()
        outcomes: dict[int, Outcome] = {message.event.seq: PUBLISHED for message in messages}
        if errors:
            topics = {message.event.seq: message.topic for message in messages}
            self._doubtful = {topics[seq] for seq, error in errors.items() if error.code() in _OF_THE_TOPIC}
            outcomes |= {seq: self._outcome(topics[seq], error) for seq, error in errors.items()}
        return outcomes

    def close(self) -> None:
        producer, self._producer, self._spent = self._producer, None, False
        if producer is not None and len(producer):
            with suppress(KafkaException, SystemError):
                _forget(producer)

    def _send_all(self, messages: Sequence[Message], deadline: float) -> _Errors:
        """Send a batch. Resend the events of a refused request in halves, so that only an event refused alone fails.

        A refused request left nothing in the topic, so splitting creates no duplicates.
        """
        errors = self._attempt(messages, deadline)
        if not errors or len(messages) == 1:
            return errors
        refused = [message for message in messages if _of_the_request(errors.get(message.event.seq))]
        middle = (len(refused) + 1) // 2
        for half in filter(None, (refused[:middle], refused[middle:])):
            seqs = [message.event.seq for message in half]
            if self._spent or monotonic() > deadline:
                errors |= dict.fromkeys(seqs, KafkaError(KafkaError._INVALID_DIFFERENT_RECORD))
                continue
            for seq in seqs:
                del errors[seq]
            errors |= self._send_all(half, deadline)
        return errors

    def _attempt(self, messages: Sequence[Message], deadline: float) -> _Errors:
        """Send all messages, wait for their delivery reports, and return the errors by seq."""
        producer = self._producer = self._producer or self._open()
        self._look_again(producer, deadline)
        errors: _Errors = {}
        report = partial(_report, errors)
        send = partial(_send, producer.produce, report)
        for message in messages:
            try:
                try:
                    send(message)
                except BufferError:
                    producer.flush(_until(deadline))
                    send(message)
            except BufferError:
                errors[message.event.seq] = KafkaError(KafkaError._QUEUE_FULL)
            except KafkaException as refused:
                errors[message.event.seq] = refused.args[0]
        failure = _hear_out(producer, deadline)
        if failure is not None:
            unanswered = (message.event.seq for message in messages if _unanswered(errors.get(message.event.seq)))
            errors |= dict.fromkeys(unanswered, failure)
        # Replace the producer after a time-out or a fatal error. A new producer connects to a recovered broker without
        # waiting, and has no old messages.
        self._spent |= any(error.fatal() or error.code() in _USED_UP for error in errors.values())
        return errors

    def _look_again(self, producer: Producer, deadline: float) -> None:
        """Refresh the metadata of missing or forbidden topics.

        The client caches the error for minutes; an operator may have fixed the topic since.
        """
        while self._doubtful:
            with suppress(KafkaException):
                producer.list_topics(self._doubtful.pop(), timeout=_until(deadline))

    def _open(self) -> Producer:
        return Producer({**self._settings.client, "error_cb": self._hear})

    def _hear(self, error: KafkaError) -> None:
        """Remember the cause of connection failures: the client reports it here, not in the delivery reports."""
        # "All brokers are down" is less specific than the error before it.
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._cause = error.str()
        elif not self._cause:
            self._cause = f"{error.str()}{self._settings.unanswered_hint}"

    def _outcome(self, topic: str, error: KafkaError) -> Outcome:
        code = error.code()
        if code in _FINAL and not error.fatal():
            return Dead(presentable(f"topic {topic}: {error.str()}"))
        if code in _NO_SUCH_TOPIC and not _TOPIC_NAME.fullmatch(topic):
            return Dead(presentable(f"topic {topic}: {_INVALID_TOPIC}"))
        if code in _NO_SUCH_TOPIC:
            return Retry(presentable(f"topic {topic} does not exist; create it, or let the broker create topics"))
        if code in _UNANSWERED:
            cause = f": {self._cause}" if self._cause else ""
            return Retry(presentable(f"topic {topic}: no answer within {self._settings.timeout_seconds:g} s{cause}"))
        cause = f" ({self._cause})" if self._cause and self._cause != error.str() else ""
        return Retry(presentable(f"topic {topic}: {error.str()}{cause}"))


def _send(produce: Any, report: Any, message: Message) -> None:
    event = message.event
    produce(
        message.topic,
        event.payload,
        event.partition_key or event.ordering_key,
        on_delivery=partial(report, event.seq),
        headers=_headers(event),
    )


def _report(errors: _Errors, seq: int, error: KafkaError | None, _: object) -> None:
    """Record a failure.

    The client calls this for failures only: once nothing is in flight, an event without a report is published.
    """
    if error is not None:
        errors[seq] = error


def _headers(event: Delivery) -> list[tuple[str, str]]:
    """Return the event's headers, then Penstock's, from `event_id` on.

    Kafka allows duplicate names, and clients find the last one.
    """
    headers = [*event.headers.items()] if event[5] else []
    headers += (
        ("event_id", event_id_text(event)),
        ("penstock-event-type", event.event_type),
        ("penstock-queue", event.queue),
        ("penstock-created-at", created_at_text(event)),
    )
    if event.partition_key is not None:
        headers.append(("penstock-partition-key", event.partition_key))
    if event.ordering_key is not None:
        headers.append(("penstock-ordering-key", event.ordering_key))
    return headers


def _hear_out(producer: Producer, deadline: float) -> KafkaError | None:
    """Wait for the delivery reports and purge the messages without a report in time.

    Return None if every event was reported, else the error of the events without a report.
    """
    try:
        reported = producer.flush(_until(deadline)) == 0 or _forget(producer)
    except (KafkaException, SystemError) as thrown:
        # flush() raises a fatal error of the client. If a delivery report arrives at the same time, Python raises
        # SystemError instead, with the fatal error as its cause.
        fatal = thrown if isinstance(thrown, KafkaException) else thrown.__cause__
        return fatal.args[0] if isinstance(fatal, KafkaException) else KafkaError(KafkaError._FATAL, str(thrown))
    return None if reported else KafkaError(KafkaError._PURGE_INFLIGHT)


def _unanswered(error: KafkaError | None) -> bool:
    return error is None or error.code() in _UNANSWERED


def _of_the_request(error: KafkaError | None) -> bool:
    return error is not None and error.code() in _OF_THE_REQUEST


def _forget(producer: Producer) -> bool:
    """Purge all unanswered messages, sent or not. Return whether the client has reported on all of them."""
    producer.purge()
    return producer.flush(PURGE_SECONDS) == 0


def _until(deadline: float) -> float:
    return max(deadline - monotonic(), 0.0)


def from_url(url: str) -> KafkaPublisher:
    return KafkaPublisher(settings_of(url))
