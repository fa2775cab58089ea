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
def test_scheme_selects_publisher(url, kind):
    assert type(open_publisher(url)) is kind


@pytest.mark.parametrize("url", URLS)
def test_publishers_can_not_be_pickled(url):
    with pytest.raises(TypeError, match="cannot pickle"):
        pickle.dumps(open_publisher(url))


def test_unknown_scheme_error_lists_known_schemes():
    with pytest.raises(UnknownScheme) as refusal:
        open_publisher("pigeon://me:secret@loft")
    message = str(refusal.value)
    assert "unknown destination scheme 'pigeon'" in message
    assert all(
        f" {scheme}," in f"{message}," for scheme in ("null", "stdout", "file", "valkey", "redis", "valkeys", "rediss")
    )
    assert "secret" not in message
    assert "\n" not in message


def test_missing_client_library_error_names_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "valkey", None)
    monkeypatch.delitem(sys.modules, "penstock.publish.valkey")
    with pytest.raises(MissingDriver, match=r"penstock\[valkey\]"):
        open_publisher("valkey://localhost")


def test_client_library_is_imported_only_for_its_scheme():
    program = "import sys, penstock.publish.registry as p; p.open_publisher('null:'); sys.exit('valkey' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("nonsense", "invalid URL 'nonsense'"),
        ("null:?speed=9", "unknown option 'speed' for null:; supported: none"),
        ("stdout:?color=red", "unknown option 'color' for stdout:; supported: path"),
        ("file:///a?fsinc=false", "supported: fsync, rotate_bytes"),
        ("file:///a?fsync=perhaps", "fsync must be true or false, got 'perhaps'"),
        ("file:///a?rotate_bytes=0", "rotate_bytes must be a whole number"),
        ("file://a/b", "file:///var/events"),
        ("file:a", "file:///var/events"),
        ("valkey://h?maxlen=-1", "maxlen must be a whole number"),
        ("valkey://h?maxlen=", "maxlen must be a whole number"),
        ("valkey://h?timeout_seconds=soon", "timeout_seconds must be a number greater than 0, got 'soon'"),
        ("valkey://h?timeout_seconds=nan", "timeout_seconds must be a number"),
        ("valkey://h?retry_on_timeout=yes", "unknown option 'retry_on_timeout' for valkey:"),
        ("valkey://me:secret@h:port", "invalid URL"),
        ("valkey://me:secret@h/zero", "expected a database number"),
        ("valkey://[h", "invalid URL"),
        ("valkey:h", "invalid URL"),
        ("valkey://h?ssl_ca_certs=ca.pem", "use valkeys:"),
        ("redis://h?ssl_keyfile=key.pem", "use rediss:"),
    ],
)
def test_invalid_url_is_refused_without_showing_secrets(url, hint):
    with pytest.raises(UsageError) as refusal:
        open_publisher(url)
    assert hint in str(refusal.value)
    assert "secret" not in str(refusal.value)
    assert "\n" not in str(refusal.value)
