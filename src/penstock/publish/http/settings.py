"""Settings of the `https:` destination, read from its URL and the environment.

Invalid settings are rejected here, before any connection.
"""

import base64
import os
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, quote, unquote, urlsplit, urlunsplit
from urllib.request import getproxies, proxy_bypass

import httpx

from penstock.config.options import TLS_OPTIONS, known_options, timeout_option, tls_context, uses_tls, whole_number
from penstock.config.urls import mask_url
from penstock.model.errors import UsageError
from penstock.publish.api import Message
from penstock.publish.http.cloudevents import Envelope, binary, structured
from penstock.publish.http.signature import parse_secrets

DEFAULT_CONCURRENCY = 32
SECRET_VARIABLE = "PENSTOCK_HTTP_SECRET"  # noqa: S105
TOKEN_VARIABLE = "PENSTOCK_HTTP_TOKEN"  # noqa: S105
TOPIC = "{topic}"

_OPTIONS = frozenset({"concurrency", "mode", "secret_env", "source", "timeout_seconds", "token_env", *TLS_OPTIONS})
_MODES = {"binary": binary, "structured": structured}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class HttpSettings:
    """Address, authentication and format of webhook requests. Has no `repr`, because it contains secrets."""

    origin: str
    """Scheme, host and port, for error messages. Without the path, which may be a secret."""
    address: httpx.URL
    template: str | None
    """The complete URL, if its path contains `{topic}`."""
    envelope: Callable[[Message, str | None], Envelope]
    source: str | None
    headers: tuple[tuple[str, str], ...]
    keys: tuple[bytes, ...]
    unmentionable: tuple[str, ...]
    tls: ssl.SSLContext
    proxy: str | None
    timeout_seconds: float
    concurrency: int

    def url(self, topic: str) -> httpx.URL:
        return self.address if self.template is None else httpx.URL(self.template.replace(TOPIC, quote(topic, safe="")))

    def has_place_for(self, topic: str) -> bool:
        """Return whether the topic can be part of the URL. The path segments `.` and `..` would change the path."""
        return self.template is None or topic not in (".", "..")

    def mask(self, text: str) -> str:
        for secret in self.unmentionable:
            text = text.replace(secret, "***")
        return text


def read_settings(url: str, environment: Mapping[str, str] = os.environ) -> HttpSettings:
    options = known_options(url, _OPTIONS)
    parts = _parts(url)
    uses_tls(parts.scheme, options)
    bare = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query=""))
    secret = _from_environment(environment, options.get("secret_env"), SECRET_VARIABLE)
    authorization, credentials = _authorization(parts, options, environment)
    headers = (("user-agent", "penstock"), *authorization)
    return HttpSettings(
        origin=f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}",
        address=_address(bare, url),
        template=bare if TOPIC in parts.path else None,
        envelope=_mode(options),
        source=_source(options),
        headers=headers,
        keys=parse_secrets(secret) if secret else (),
        unmentionable=tuple(text for text in (*credentials, *secret.split()) if text),
        tls=tls_context(options, default=httpx.create_ssl_context),
        proxy=None if proxy_bypass(parts.hostname or "") else getproxies().get(parts.scheme),
        timeout_seconds=timeout_option(options),
        concurrency=whole_number(options, "concurrency") or DEFAULT_CONCURRENCY,
    )


def _parts(url: str) -> SplitResult:
    parts = urlsplit(url)
    try:
        complete = bool(parts.hostname) and parts.port != 0 and not re.search(r"\s", parts.netloc)
    except ValueError:
        complete = False
    if not complete:
        raise UsageError(f"invalid webhook URL {mask_url(url)}; expected https://host/path")
    if parts.fragment:
        raise UsageError(f"invalid webhook URL {mask_url(url)}; remove the fragment after #")
    if re.search("[{}]", parts.netloc + parts.path.replace(TOPIC, "")):
        raise UsageError(f"invalid webhook URL {mask_url(url)}; braces are reserved for {TOPIC} in the path")
    return parts


def _address(bare: str, url: str) -> httpx.URL:
    try:
        return httpx.URL(bare.replace(TOPIC, "topic"))
    except httpx.InvalidURL as error:
        raise UsageError(f"invalid webhook URL {mask_url(url)}: {error}") from error


def _mode(options: Mapping[str, str]) -> Callable[[Message, str | None], Envelope]:
    mode = options.get("mode", "binary")
    if mode not in _MODES:
        raise UsageError(f"unknown mode {mode!r}; expected one of {', '.join(_MODES)}")
    return _MODES[mode]


def _source(options: Mapping[str, str]) -> str | None:
    source = options.get("source")
    if source is not None and not re.fullmatch(r"[!#-~]+", source):
        raise UsageError(f"invalid source {source!r}; expected a URI such as https://example.com/shop")
    return source


def _from_environment(environment: Mapping[str, str], named: str | None, usual: str) -> str:
    """Return the value of the variable `named`, which must be set; without `named`, of `usual`, which is optional."""
    if named is None:
        return environment.get(usual, "").strip()
    value = environment.get(named, "").strip()
    if not value:
        raise UsageError(f"environment variable {named!r} is empty or not set; set it where the relay's tasks run")
    return value


def _authorization(
    parts: SplitResult, options: Mapping[str, str], environment: Mapping[str, str]
) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the authorization header, if any, and the parts of it that errors must not show."""
    token = _from_environment(environment, options.get("token_env"), TOKEN_VARIABLE)
    if parts.username is not None:
        if "token_env" in options:
            raise UsageError("a user in the URL and the option token_env are mutually exclusive")
        user, password = unquote(parts.username), unquote(parts.password or "")
        basic = base64.b64encode(f"{user}:{password}".encode()).decode()
        return [("authorization", f"Basic {basic}")], [basic, password, parts.password or ""]
    if not token:
        return [], []
    if not re.fullmatch("[!-~]+", token):
        raise UsageError("the receiver's token must be printable ASCII without spaces")
    return [("authorization", f"Bearer {token}")], [token]
