"""Security of `https://`: signatures, tokens, certificates, and secrets that stay out of logs."""

import base64
import pickle
import ssl
import subprocess

import pytest
from http_receiver import TAKEN, Answer, Receiver, make_certificate, only_outcome

from penstock.model.errors import InvalidSignature, UsageError
from penstock.model.outcome import PUBLISHED, Dead, Retry
from penstock.publish.http.signature import verify
from penstock.publish.registry import open_publisher
from penstock.testing.events import delivery
from penstock.testing.publishers import messages, published

SECRET = "whsec_" + base64.b64encode(b"a secret of the receiver").decode()


@pytest.mark.parametrize("mode", ["binary", "structured"])
def test_request_is_signed_with_configured_secret(receiver, opened, monkeypatch, mode):
    monkeypatch.setenv("PENSTOCK_HTTP_SECRET", SECRET)
    events = [delivery(payload=b"\xff\x00\n"), delivery(payload=b"")]
    assert opened(f"http://{receiver.address}/hook?mode={mode}").publish(messages(events)) == published(events)
    verified = {verify(request.headers, request.body, SECRET) for request in receiver.requests}
    assert verified == {str(event.event_id) for event in events}


def test_tampered_request_fails_verification(receiver, opened, monkeypatch):
    monkeypatch.setenv("SHOP_SECRET", SECRET)
    only_outcome(opened(f"http://{receiver.address}/hook?secret_env=SHOP_SECRET"), delivery())
    [request] = receiver.requests
    for headers, body in (
        (request.headers, request.body + b" "),
        ({**request.headers, "webhook-id": "another"}, request.body),
        ({**request.headers, "webhook-timestamp": str(int(request.headers["webhook-timestamp"]) + 1)}, request.body),
    ):
        with pytest.raises(InvalidSignature, match="does not match the body"):
            verify(headers, body, SECRET)


def test_retry_has_new_signature_and_same_id(receiver, opened, monkeypatch):
    """A receiver would reject an old timestamp as a replayed request."""
    monkeypatch.setenv("PENSTOCK_HTTP_SECRET", SECRET)
    publisher, event = opened(f"http://{receiver.address}/hook"), delivery()
    for moment in (1_000_000_000.0, 2_000_000_000.9):
        monkeypatch.setattr("penstock.publish.http.publisher.time.time", lambda now=moment: now)
        assert only_outcome(publisher, event) == PUBLISHED
    for request, now in zip(receiver.requests, (1_000_000_000, 2_000_000_000), strict=True):
        assert verify(request.headers, request.body, SECRET, now=now, tolerance_seconds=0) == str(event.event_id)


def test_request_is_unsigned_without_secret(receiver, opened):
    only_outcome(opened(f"http://{receiver.address}/hook"), delivery())
    assert not any(name.startswith("webhook-") for name in receiver.requests[0].headers)


def test_authorization_comes_from_environment_or_url(receiver, opened, monkeypatch):
    monkeypatch.setenv("PENSTOCK_HTTP_TOKEN", "usual-token")
    monkeypatch.setenv("SHOP_TOKEN", "shop-token")
    for options in ("", "?token_env=SHOP_TOKEN"):
        only_outcome(opened(f"http://{receiver.address}/hook{options}"), delivery())
    only_outcome(opened(f"http://me:p%40ss@{receiver.address}/hook"), delivery())
    basic = base64.b64encode(b"me:p@ss").decode()
    shown = [request.headers["authorization"] for request in receiver.requests]
    assert shown == ["Bearer usual-token", "Bearer shop-token", f"Basic {basic}"]


def test_event_headers_can_not_replace_credentials(receiver, opened, monkeypatch):
    monkeypatch.setenv("PENSTOCK_HTTP_TOKEN", "usual-token")
    event = delivery(headers={"Authorization": "Bearer forged", "Idempotency-Key": "1", "Host": "elsewhere"})
    assert only_outcome(opened(f"http://{receiver.address}/hook"), event) == PUBLISHED
    [request] = receiver.requests
    assert request.headers["authorization"] == "Bearer usual-token"
    assert request.headers["idempotency-key"] == str(event.event_id)
    assert request.headers["host"] == receiver.address
    assert "forged" in request.headers["ce-headers"]


@pytest.mark.parametrize("status", [302, 400, 503])
@pytest.mark.parametrize("credentials", ["", "me:hunter2-p%40ss@"])
def test_echoed_secrets_are_masked_in_error(receiver, opened, monkeypatch, status, credentials):
    def echo(request):
        body = "\n".join([*request.headers.values(), "hunter2-p@ss", SECRET])
        return Answer(status, {"location": f"https://x/?{request.headers['authorization']}"}, body.encode())

    receiver.answer = echo
    monkeypatch.setenv("PENSTOCK_HTTP_SECRET", SECRET)
    monkeypatch.setenv("PENSTOCK_HTTP_TOKEN", "hunter2-token")
    outcome = only_outcome(opened(f"http://{credentials}{receiver.address}/hook"), delivery())
    assert isinstance(outcome, Retry | Dead)
    assert "***" in outcome.error
    for secret in ("hunter2", SECRET, base64.b64encode(b"me:hunter2").decode()[:-2]):
        assert secret not in outcome.error


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    return make_certificate(tmp_path_factory.mktemp("ours"))


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    return make_certificate(tmp_path_factory.mktemp("theirs"))


@pytest.fixture
def guarded(ours):
    """A TLS receiver that checks client certificates; a test can make them mandatory."""
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=ours.certificate)
    tls.load_cert_chain(ours.certificate, ours.key)
    tls.verify_mode = ssl.CERT_OPTIONAL
    with Receiver(lambda _: TAKEN, tls=tls) as receiver:
        receiver.tls = tls
        yield receiver


def test_untrusted_certificate_is_retry_with_cause(guarded, opened, theirs):
    for options in ("", f"?ssl_ca_certs={theirs.certificate}"):
        outcome = only_outcome(opened(f"https://{guarded.address}/hook{options}"), delivery())
        assert isinstance(outcome, Retry)
        assert "certificate verify failed" in outcome.error
    assert guarded.requests == []


def test_certificate_for_different_name_is_retry(guarded, opened, ours):
    url = f"https://localhost:{guarded.port}/hook?ssl_ca_certs={ours.certificate}"
    outcome = only_outcome(opened(url), delivery())
    assert isinstance(outcome, Retry)
    assert guarded.requests == []


def test_receiver_with_trusted_certificate_gets_events(guarded, opened, ours):
    events = [delivery() for _ in range(100)]
    publisher = opened(f"https://{guarded.address}/hook?ssl_ca_certs={ours.certificate}&timeout_seconds=30")
    assert publisher.publish(messages(events)) == published(events)


def test_client_certificate_is_sent_when_required(guarded, opened, ours, theirs):
    guarded.tls.verify_mode = ssl.CERT_REQUIRED
    url = f"https://{guarded.address}/hook?ssl_ca_certs={ours.certificate}"
    shown = f"&ssl_certfile={ours.certificate}&ssl_keyfile={ours.key}"
    strange = f"&ssl_certfile={theirs.certificate}&ssl_keyfile={theirs.key}"
    assert isinstance(only_outcome(opened(url), delivery()), Retry)
    assert isinstance(only_outcome(opened(url + strange), delivery()), Retry)
    assert only_outcome(opened(url + shown), delivery()) == PUBLISHED


def test_encrypted_key_is_refused_without_prompt(ours, tmp_path):
    locked = tmp_path / "locked.pem"
    command = ["openssl", "rsa", "-aes256", "-passout", "pass:hunter2", "-in", ours.key, "-out", locked]
    subprocess.run(command, check=True, capture_output=True)
    with pytest.raises(UsageError, match=r"cannot read the TLS certificates \(ssl_certfile=.*, ssl_keyfile="):
        open_publisher(f"https://h/?ssl_certfile={ours.certificate}&ssl_keyfile={locked}")


def test_http_and_https_port_mismatch_is_retry(guarded, receiver, opened):
    for url in (f"http://{guarded.address}/hook", f"https://{receiver.address}/hook"):
        assert isinstance(only_outcome(opened(url), delivery()), Retry)


def test_proxy_from_environment_is_used_unless_excluded(receiver, opened, monkeypatch):
    monkeypatch.setenv("http_proxy", f"http://{receiver.address}")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert only_outcome(opened("http://shop.invalid/hook"), delivery()) == PUBLISHED
    assert receiver.requests[0].path == "http://shop.invalid/hook"
    assert only_outcome(opened(f"http://{receiver.address}/hook"), delivery()) == PUBLISHED
    assert receiver.requests[1].path == "/hook"


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("http:", "expected https://host/path"),
        ("https:///path", "expected https://host/path"),
        ("https://me:hunter2@host:port/", "expected https://host/path"),
        ("https://host:0/", "expected https://host/path"),
        ("https://me:hunter2@[host", "invalid URL https://me:***@[host: "),
        ("https://me:hunter2@ho st/", "invalid webhook URL"),
        ("https://me:hunter2@xn--ü/", "invalid webhook URL"),
        ("https://host/hook#part", "after #"),
        ("https://host/{event_type}", "reserved for {topic}"),
        ("https://{topic}.host/", "in the path"),
        ("https://host/?mode=batched", "unknown mode 'batched'; expected one of binary, structured"),
        ("https://host/?source=", "expected a URI"),
        ("https://host/?source=two%20words", "expected a URI"),
        ("https://host/?concurrency=0", "concurrency must be a whole number"),
        ("https://host/?timeout_seconds=0", "timeout_seconds must be a number"),
        ("https://host/?secret=hunter2", "unknown option 'secret' for https:"),
        ("https://host/?secret_env=UNSET_HERE", "'UNSET_HERE' is empty or not set"),
        ("https://host/?token_env=UNSET_HERE", "'UNSET_HERE' is empty or not set"),
        ("https://host/?token_env=BAD_TOKEN", "printable ASCII"),
        ("https://me:hunter2@host/?token_env=GOOD_TOKEN", "mutually exclusive"),
        ("https://host/?secret_env=BAD_SECRET", "expected base64"),
        ("http://host/?ssl_ca_certs=/nowhere.pem", "use https:"),
        ("https://host/?ssl_ca_certs=/nowhere.pem", "cannot read the TLS certificates (ssl_ca_certs=/nowhere.pem)"),
        ("https://host/?ssl_certfile=/nowhere.pem", "cannot read the TLS certificates (ssl_certfile=/nowhere.pem)"),
        ("https://host/?ssl_keyfile=/nowhere.pem", "missing ssl_certfile"),
    ],
)
def test_invalid_url_is_refused_without_showing_secrets(monkeypatch, url, hint):
    monkeypatch.setenv("BAD_TOKEN", "hunter2\nx")
    monkeypatch.setenv("GOOD_TOKEN", "hunter2")
    monkeypatch.setenv("BAD_SECRET", "whsec_hunter2!")
    with pytest.raises(UsageError) as refusal:
        open_publisher(url)
    assert hint in str(refusal.value)
    assert "hunter2" not in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_publisher_hides_secrets_and_can_not_be_pickled():
    publisher = open_publisher("https://me:hunter2@host/hook")
    assert "hunter2" not in f"{publisher!r} {publisher._settings!r}"
    with pytest.raises(TypeError, match="cannot pickle a HttpPublisher"):
        pickle.dumps(publisher)
