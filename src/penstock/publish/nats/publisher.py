"""`nats://` publishes events to JetStream, with the topic as the subject; `natss://` with TLS.

A batch is sent at once, and its acknowledgements are awaited together. The stream drops duplicate events.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from urllib.parse import unquote, urlsplit

from penstock.config.options import TLS_OPTIONS, flag, known_options, timeout_option, tls_context, uses_tls
from penstock.config.urls import mask_url
from penstock.model.errors import MissingDriver, PublishError, UsageError
from penstock.model.outcome import Outcome, Retry
from penstock.publish.api import Message, Unpicklable
from penstock.publish.errors import error_text
from penstock.publish.event_loop import EventLoopThread
from penstock.publish.nats.connection import Access, Connection, read_credentials

DEFAULT_PORT = 4222
# A stream refuses further messages when 10,000 messages or 128 MB are pending; other clients may publish to it too.
FLIGHT_MESSAGES = 4_000
FLIGHT_BYTES = 32_000_000

_OPTIONS = TLS_OPTIONS | {"creds", "stream", "subjects", "timeout_seconds", "tls_first"}
_HOST = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[^\[\]:@/\s]+)(?::(?P<port>\d+))?")


class NatsPublisher(Unpicklable):
    """Publisher for NATS JetStream. Not `in_order`: a full stream may refuse one message and accept the next."""

    in_order = False

    def __init__(self, access: Access) -> None:
        self._access = access
        self._background = EventLoopThread("penstock-nats")
        self._connection: Connection | None = None

    def publish(self, messages: Sequence[Message]) -> dict[int, Outcome]:
        outcomes: dict[int, Outcome] = {}
        try:
            for flight in _flights(messages) if messages else ():
                self._background.run(self._connected().carry(flight, outcomes))
        except PublishError as error:
            self.close()
            unanswered = Retry(error_text(error))
            return {message.event.seq: outcomes.get(message.event.seq, unanswered) for message in messages}
        except BaseException:
            self.close()
            raise
        return outcomes

    def close(self) -> None:
        """Drop the connection with its event loop at once. The next batch opens a new connection."""
        self._connection = None
        self._background.close()

    def _connected(self) -> Connection:
        """Return a connection to the first host that answers. Each host is tried once."""
        if self._connection is not None and self._connection.alive:
            return self._connection
        problems = []
        for host in self._access.hosts:
            self.close()
            connection = Connection(self._access)
            try:
                self._background.run(connection.open(host))
            except PublishError as error:
                problems.append(str(error))
            else:
                self._connection = connection
                return connection
        raise PublishError("cannot reach NATS: " + "; ".join(problems))


def _flights(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """Split a batch into pieces that a stream accepts at once. Most batches stay whole."""
    start = size = 0
    for end, message in enumerate(messages):
        size += len(message.event.payload)
        if end > start and (size > FLIGHT_BYTES or end - start >= FLIGHT_MESSAGES):
            yield messages[start:end]
            start, size = end, len(message.event.payload)
    yield messages[start:]


def from_url(url: str) -> NatsPublisher:
    options = known_options(url, _OPTIONS)
    parts = urlsplit(url)
    if parts.path.strip("/") or parts.fragment:
        raise UsageError(f"invalid URL {mask_url(url)}; expected only options after the hosts")
    userinfo, _, hosts = parts.netloc.rpartition("@")
    subjects = tuple(filter(None, options.get("subjects", "").split(",")))
    if ("stream" in options) != bool(subjects):
        raise UsageError("stream and subjects must be set together, such as stream=orders&subjects=orders.>")
    access = Access(
        hosts=tuple(_host(host) for host in hosts.split(",")),
        timeout_seconds=timeout_option(options),
        tls=tls_context(options) if uses_tls(parts.scheme, options) else None,
        tls_first=flag(options, "tls_first", False),
        stream=options.get("stream"),
        subjects=subjects,
        **_credentials(userinfo, options, os.environ),
    )
    return NatsPublisher(access)


def _host(text: str) -> str:
    """Return a host with its port."""
    match = _HOST.fullmatch(text)
    if match is None or int(match["port"] or DEFAULT_PORT) not in range(1, 65_536):
        raise UsageError("invalid NATS URL; expected nats://one:4222,two:4222, with an @ in a password as %40")
    return f"{match['host']}:{match['port'] or DEFAULT_PORT}"


def _credentials(userinfo: str, options: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the credentials of the URL, else of the `creds` file, else of the environment."""
    if userinfo and "creds" in options:
        raise UsageError("credentials in the URL and the option creds are mutually exclusive")
    if userinfo:
        username, colon, password = userinfo.partition(":")
        return {"username": unquote(username), "password": unquote(password)} if colon else {"token": unquote(userinfo)}
    if "creds" in options:
        if find_spec("nkeys") is None:
            raise MissingDriver("option creds", "nats")
        read_credentials(options["creds"])
        return {"creds": options["creds"]}
    names = {name: f"PENSTOCK_NATS_{name.upper()}" for name in ("username", "password", "token")}
    given = {name: environment[variable] for name, variable in names.items() if environment.get(variable)}
    if given.keys() not in ({"username", "password"}, {"token"}, set[str]()):
        raise UsageError(
            "invalid NATS credentials; set PENSTOCK_NATS_USERNAME and PENSTOCK_NATS_PASSWORD, or PENSTOCK_NATS_TOKEN"
        )
    return given
