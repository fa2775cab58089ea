"""Routes from event types to destinations, read from `penstock.toml` or created from `--route` options.

Each destination has a separate queue, `outbox@name`, and therefore separate retries, dead letters and replays. Only
reading the file and the environment does I/O.
"""

import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from penstock.config.urls import mask_url, url_scheme
from penstock.model.errors import InvalidEvent, UsageError

CONFIG_VARIABLE = "PENSTOCK_CONFIG"
DEFAULT_CONFIG = Path("penstock.toml")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
# Types of the settings of a destination other than its URL.
_KINDS = {"topic": str, "max_attempts": int, "retry_delay": int | float}
_VARIABLE = re.compile(r"\$\{(\w+)\}")


class Unrouted(StrEnum):
    """Treatment of events that match no route. Such events are never dropped silently."""

    DEAD = "dead"
    """The relay makes the event a dead letter, which can be replayed once a matching route exists."""
    REFUSE = "refuse"
    """Emitting the event raises an error. Events emitted without this check become dead letters at the relay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """A destination with its URL, topic and retry settings; a setting of None inherits that of the relay."""

    name: str
    url: str
    topic: str | None = None
    max_attempts: int | None = None
    retry_delay: float | None = None

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise UsageError(f"invalid destination name {self.name!r}; expected letters, digits, '.', '_' or '-'")
        url_scheme(self.url)
        if self.max_attempts is not None and self.max_attempts < 1:
            raise UsageError(f"destination {self.name}: max_attempts must be at least 1, got {self.max_attempts}")
        if self.retry_delay is not None and not 0 <= self.retry_delay < float("inf"):
            raise UsageError(f"destination {self.name}: retry_delay must be at least 0, got {self.retry_delay}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Sends events whose type matches any of the globs to all destinations in `to`, optionally with a topic."""

    types: Sequence[str]
    to: Sequence[str]
    topic: str | None = None

    def matches(self, event_type: str) -> bool:
        return any(fnmatchcase(event_type, glob) for glob in self.types)


@dataclass(frozen=True, slots=True, kw_only=True)
class Routes:
    """All routes of a configuration. Every matching route applies; each destination receives an event only once."""

    destinations: Mapping[str, Destination]
    routes: Sequence[Route]
    unrouted: Unrouted = Unrouted.DEAD
    _found: dict[str, tuple[str, ...]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.routes:
            raise UsageError("missing routes; add one such as [[routes]] types = 'orders.*' to = 'archive'")
        for route in self.routes:
            for name in route.to:
                if name not in self.destinations:
                    known = ", ".join(self.destinations) or "none"
                    raise UsageError(f"unknown destination {name!r} in a route; existing destinations: {known}")

    def destinations_of(self, event_type: str) -> tuple[str, ...]:
        """Return the destinations of an event type, in the order of the routes; empty if no route matches."""
        found = self._found.get(event_type)
        if found is None:
            names = (name for route in self.routes if route.matches(event_type) for name in route.to)
            found = self._found[event_type] = tuple(dict.fromkeys(names))
        return found

    def require(self, event_types: Iterable[str]) -> None:
        """Raise `InvalidEvent` for event types without a route if `unrouted` is `REFUSE`."""
        if self.unrouted is Unrouted.REFUSE:
            for event_type in event_types:
                if not self.destinations_of(event_type):
                    raise InvalidEvent(f"no route matches event type {event_type!r}; add one to penstock.toml")

    def topics_of(self, name: str) -> dict[str, str]:
        """Return the topics that the routes set for a destination, by glob."""
        return {
            glob: route.topic
            for route in self.routes
            if route.topic is not None and name in route.to
            for glob in route.types
        }

    @property
    def used(self) -> list[Destination]:
        """Destinations that at least one route uses."""
        names = {name for route in self.routes for name in route.to}
        return [destination for name, destination in self.destinations.items() if name in names]


def queue_of(queue: str, destination: str) -> str:
    """Return the name of the queue with the events for one destination."""
    return f"{queue}@{destination}"


def parse_routes(given: Sequence[str]) -> Routes:
    """Parse `GLOB=URL` options of `--route`. A glob may occur several times, with different destinations."""
    destinations: dict[str, Destination] = {}
    routes = []
    for text in given:
        glob, equals, url = text.partition("=")
        if not equals or not glob.strip() or not url.strip():
            raise UsageError(f"invalid route {mask_url(text)!r}; expected one such as 'orders.*=kafka://host:9092'")
        name = _name_of(url.strip())
        destinations[name] = Destination(name=name, url=url.strip())
        routes.append(Route(types=[glob.strip()], to=[name]))
    return Routes(destinations=destinations, routes=routes)


def find_routes(given: str | None = None, environment: Mapping[str, str] = os.environ) -> Routes | None:
    """Load the routes from the given file, the file in PENSTOCK_CONFIG or ./penstock.toml; None if there is no file."""
    named = given or environment.get(CONFIG_VARIABLE)
    if named is None and not DEFAULT_CONFIG.is_file():
        return None
    return load_routes(Path(named) if named else DEFAULT_CONFIG, environment)


def load_routes(path: Path, environment: Mapping[str, str] | None = None) -> Routes:
    """Load the routes from a file such as `penstock.toml`. `${NAME}` in a URL is replaced from the environment."""
    try:
        content = tomllib.loads(path.read_text())
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"invalid TOML in {path}: {error}") from error
    try:
        return _routes(content, os.environ if environment is None else environment)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def _routes(content: Mapping[str, Any], environment: Mapping[str, str]) -> Routes:
    _table(content, "the file", "destinations", "routes", "unrouted")
    given = _table(content.get("destinations", {}), "destinations")
    destinations = {name: _destination(name, fields, environment) for name, fields in given.items()}
    routes = content.get("routes", [])
    if not isinstance(routes, list):
        raise UsageError("routes must be a list of tables; write [[routes]] with two brackets")
    try:
        unrouted = Unrouted(content.get("unrouted", Unrouted.DEAD))
    except ValueError:
        raise UsageError(f"unknown value {content['unrouted']!r} for unrouted; expected one of dead, refuse") from None
    return Routes(destinations=destinations, routes=[_route(fields) for fields in routes], unrouted=unrouted)


def _destination(name: str, given: Any, environment: Mapping[str, str]) -> Destination:
    what = f"destination {name}"
    fields = {"url": given} if isinstance(given, str) else dict(_table(given, what, "url", *_KINDS))
    url = _text(fields.pop("url", None), f"{what}: url")
    for setting, value in fields.items():
        if not isinstance(value, _KINDS[setting]) or isinstance(value, bool):
            raise UsageError(
                f"{what}: invalid {setting} {value!r}; topic is a string, max_attempts an integer, retry_delay a number"
            )
    return Destination(name=name, url=_filled(url, environment), **fields)


def _route(given: Any) -> Route:
    fields = _table(given, "a route", "types", "to", "topic")
    topic = fields.get("topic")
    return Route(
        types=_texts(fields.get("types"), "a route's types"),
        to=_texts(fields.get("to"), "a route's to"),
        topic=None if topic is None else _text(topic, "a route's topic"),
    )


def _filled(url: str, environment: Mapping[str, str]) -> str:
    """Replace `${NAME}` with environment variables, so that passwords can be kept out of the file."""
    for name in _VARIABLE.findall(url):
        if name not in environment:
            raise UsageError(f"environment variable {name!r} is not set; required by {mask_url(url)}")
    return _VARIABLE.sub(lambda match: environment[match[1]], url)


def _name_of(url: str) -> str:
    """Return a destination name that is the same in every run and contains no secret."""
    parts = urlsplit(url)
    # Omit the user name as well: it may be a token.
    plain = f"{url_scheme(url)}-{parts.netloc.rpartition('@')[2]}{parts.path}"
    return re.sub(r"[^A-Za-z0-9._]+", "-", plain).strip("-")[:100]


def _table(given: Any, what: str, *known: str) -> Mapping[str, Any]:
    """Return a table after checking that it has only `known` settings: a misspelt one would have no effect."""
    if not isinstance(given, dict):
        raise UsageError(f"{what} must be a table, got {given!r}")
    for name in given:
        if known and name not in known:
            raise UsageError(f"unknown setting {name!r} in {what}; supported: {', '.join(sorted(known))}")
    return given


def _text(given: Any, what: str) -> str:
    if not isinstance(given, str) or not given:
        raise UsageError(f"{what} must be a non-empty string, got {given!r}")
    return given


def _texts(given: Any, what: str) -> list[str]:
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) and text for text in texts):
        raise UsageError(f"{what} must be a non-empty string or list of strings, got {given!r}")
    return texts
