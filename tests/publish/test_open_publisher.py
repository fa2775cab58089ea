"""Opening the publisher of a URL."""

import pickle
import subprocess
import sys

import pytest

from penstock.model.errors import MissingDriver, UnknownScheme, UsageError
from penstock.publish.files import FilePublisher
from penstock.publish.null import NullPublisher
from penstock.publish.registry import open_publisher
from penstock.publish.stdout import ConsolePublisher
from penstock.publish.valkey import ValkeyPublisher

URLS = {
    "null:": NullPublisher,
    "stdout:": ConsolePublisher,
    "file:///nowhere/yet": FilePublisher,
    "FILE:///nowhere/yet?fsync=false": FilePublisher,
    "valkey://127.0.0.1:1/0": ValkeyPublisher,
    "redis://127.0.0.1:1?maxlen=1000": ValkeyPublisher,
    "valkeys://127.0.0.1:1?timeout_seconds=1.5": ValkeyPublisher,
    "REDISS://me:secret@127.0.0.1:1": ValkeyPublisher,
}


@pytest.mark.parametrize(("url", "kind"), URLS.items(), ids=str)
def test_the_scheme_names_the_publisher(url, kind):
    assert type(open_publisher(url)) is kind


@pytest.mark.parametrize("url", URLS)
def test_publishers_never_travel_in_pickles(url):
    with pytest.raises(TypeError, match="stays in its process"):
        pickle.dumps(open_publisher(url))


def test_an_unknown_scheme_is_answered_with_the_known_ones():
    with pytest.raises(UnknownScheme) as refusal:
        open_publisher("pigeon://me:secret@loft")
    message = str(refusal.value)
    assert "pigeon:" in message
    assert all(f"{scheme}:" in message for scheme in ("null", "stdout", "file", "valkey", "redis", "valkeys", "rediss"))
    assert "secret" not in message
    assert "\n" not in message


def test_a_missing_client_library_is_answered_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "valkey", None)
    monkeypatch.delitem(sys.modules, "penstock.publish.valkey")
    with pytest.raises(MissingDriver, match=r"penstock\[valkey\]"):
        open_publisher("valkey://localhost")


def test_client_libraries_are_imported_only_when_their_url_is_opened():
    program = "import sys, penstock.publish.registry as p; p.open_publisher('null:'); sys.exit('valkey' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("nonsense", "not a URL"),
        ("null:?speed=9", "no option 'speed'; it takes none"),
        ("stdout:?color=red", "no option 'color'"),
        ("file:///a?fsinc=false", "it takes fsync, rotate_bytes"),
        ("file:///a?fsync=perhaps", "fsync is true or false, not 'perhaps'"),
        ("file:///a?rotate_bytes=0", "rotate_bytes is a whole number"),
        ("file://a/b", "file:///var/events"),
        ("file:a", "file:///var/events"),
        ("valkey://h?maxlen=-1", "maxlen is a whole number"),
        ("valkey://h?maxlen=", "maxlen is a whole number"),
        ("valkey://h?timeout_seconds=soon", "timeout_seconds is a number of seconds above 0, not 'soon'"),
        ("valkey://h?timeout_seconds=nan", "timeout_seconds is a number"),
        ("valkey://h?retry_on_timeout=yes", "no option 'retry_on_timeout'"),
        ("valkey://me:secret@h:port", "can't be understood"),
        ("valkey://me:secret@h/zero", "a database's number"),
        ("valkey://[h", "can't be understood"),
        ("valkey:h", "can't be understood"),
        ("valkey://h?ssl_ca_certs=ca.pem", "use valkeys:"),
        ("redis://h?ssl_keyfile=key.pem", "use rediss:"),
    ],
)
def test_a_url_that_cannot_be_right_is_refused(url, hint):
    with pytest.raises(UsageError) as refusal:
        open_publisher(url)
    assert hint in str(refusal.value)
    assert "secret" not in str(refusal.value)
    assert "\n" not in str(refusal.value)
