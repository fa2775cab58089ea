"""Routes: parsing, validation, and destinations of an event."""

import pickle
from pathlib import Path

import pytest

from penstock.config.routes import Routes, Unrouted, find_routes, load_routes, parse_routes, queue_of
from penstock.model.errors import InvalidEvent, UsageError

GOOD = """
unrouted = "refuse"

[destinations]
archive = "file:///var/archive"
broker = { url = "kafka://app:${SECRET}@broker:9092", topic = "all", max_attempts = 20, retry_delay = 0.5 }

[[routes]]
types = "orders.*"
to = ["broker", "archive"]
topic = "orders"

[[routes]]
types = ["*.paid", "audit.*"]
to = "archive"
"""


def load(tmp_path: Path, text: str) -> Routes:
    path = tmp_path / "penstock.toml"
    path.write_text(text)
    return load_routes(path, {"SECRET": "s3cret"})


@pytest.mark.parametrize(
    ("event_type", "names"),
    [
        ("orders.created", ("broker", "archive")),
        ("orders.paid", ("broker", "archive")),
        ("invoices.paid", ("archive",)),
        ("audit.login", ("archive",)),
        ("users.created", ()),
    ],
)
def test_all_matching_routes_apply_without_duplicates(tmp_path: Path, event_type: str, names: tuple[str, ...]) -> None:
    assert load(tmp_path, GOOD).destinations_of(event_type) == names


def test_destination_settings_are_loaded(tmp_path: Path) -> None:
    routes = load(tmp_path, GOOD)
    broker = routes.destinations["broker"]
    assert broker.url == "kafka://app:s3cret@broker:9092"
    assert (broker.topic, broker.max_attempts, broker.retry_delay) == ("all", 20, 0.5)
    assert routes.topics_of("broker") == {"orders.*": "orders"}
    assert routes.topics_of("archive") == {"orders.*": "orders"}
    assert routes.unrouted is Unrouted.REFUSE
    assert queue_of("outbox", "broker") == "outbox@broker"


def test_only_routed_destinations_are_used(tmp_path: Path) -> None:
    routes = load(tmp_path, GOOD.replace('["broker", "archive"]', '"archive"'))
    assert [destination.name for destination in routes.used] == ["archive"]


def test_unrouted_type_is_refused_only_if_configured(tmp_path: Path) -> None:
    refusing = load(tmp_path, GOOD)
    refusing.require(["orders.created", "audit.x"])
    with pytest.raises(InvalidEvent, match=r"no route matches event type 'users\.created'; add one"):
        refusing.require(["orders.created", "users.created"])
    load(tmp_path, GOOD.replace('"refuse"', '"dead"')).require(["users.created"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nonsense", "invalid TOML in "),
        ('[[routes]]\ntypes = "a"\nto = "b"', "unknown destination 'b' in a route; existing destinations: none"),
        ('[destinations]\na = "file:///a"', "missing routes"),
        ('[destinations]\na = "nowhere"\n[[routes]]\ntypes = "*"\nto = "a"', "invalid URL 'nowhere'"),
        ('[destinations]\n"a b" = "file:///a"\n[[routes]]\ntypes = "*"\nto = "a b"', "invalid destination name 'a b'"),
        (
            '[destinations]\na = { url = "file:///a", retries = 3 }',
            "unknown setting 'retries' in destination a; supported: ",
        ),
        ('[destinations]\na = { url = "file:///a", max_attempts = 0 }', "max_attempts must be at least 1, got 0"),
        ('[destinations]\na = { url = "file:///a", max_attempts = "x" }', "destination a: invalid max_attempts 'x'"),
        ('[destinations]\na = { url = "file:///a", retry_delay = -1 }', "retry_delay must be at least 0, got -1"),
        ("[destinations]\na = { topic = 'x' }", "url must be a non-empty string, got None"),
        ('[destinations]\na = "kafka://u:${UNSET}@h"', "environment variable 'UNSET' is not set"),
        ('[destinations]\na = "file:///a"\n[routes]\ntypes = "*"\nto = "a"', "write [[routes]]"),
        ('[destinations]\na = "file:///a"\n[[routes]]\nto = "a"', "a route's types must be"),
        ('[destinations]\na = "file:///a"\n[[routes]]\ntypes = []\nto = "a"', "a route's types must be"),
        ('[destinations]\na = "file:///a"\n[[routes]]\ntype = "*"\nto = "a"', "unknown setting 'type' in a route"),
        (
            'unrouted = "drop"\n[destinations]\na = "file:///a"\n[[routes]]\ntypes = "*"\nto = "a"',
            "unknown value 'drop' for unrouted",
        ),
        ("destinations = 3", "destinations must be a table"),
    ],
)
def test_invalid_routes_file_is_usage_error(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(UsageError) as error:
        load(tmp_path, text)
    assert expected in str(error.value)
    assert "penstock.toml" in str(error.value)


def test_missing_routes_file_is_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*none\.toml: No such file"):
        load_routes(tmp_path / "none.toml")


def test_routes_file_is_found_by_argument_variable_or_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_routes(environment={}) is None
    simple = '[destinations]\na = "file:///a"\n[[routes]]\ntypes = "*"\nto = "a"'
    (tmp_path / "other.toml").write_text(simple)
    assert find_routes(environment={"PENSTOCK_CONFIG": "other.toml"}) is not None
    assert find_routes("other.toml", {"PENSTOCK_CONFIG": "none.toml"}) is not None
    (tmp_path / "penstock.toml").write_text(simple)
    assert find_routes(environment={}) is not None


def test_routes_are_parsed_from_arguments() -> None:
    routes = parse_routes(["orders.*=kafka://app:s3cret@broker:9092", "*=file:///var/archive", "*=null:"])
    assert routes.destinations_of("orders.paid") == ("kafka-broker-9092", "file-var-archive", "null")
    assert routes.destinations_of("other") == ("file-var-archive", "null")
    assert "s3cret" not in "".join(routes.destinations)


@pytest.mark.parametrize("text", ["orders.*", "=file:///x", "orders.*=", "orders.*=nowhere"])
def test_invalid_route_argument_is_usage_error(text: str) -> None:
    with pytest.raises(UsageError):
        parse_routes([text])


def test_routes_can_be_pickled(tmp_path: Path) -> None:
    routes = load(tmp_path, GOOD)
    assert pickle.loads(pickle.dumps(routes)) == routes
