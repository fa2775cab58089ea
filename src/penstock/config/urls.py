"""URLs of stores and destinations: default, masking, scheme and options. The only I/O is reading the environment."""

import os
import re
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlsplit

from penstock.model.errors import UsageError

DEFAULT_STORE = "sqlite:///penstock.db"
STORE_VARIABLE = "PENSTOCK_STORE"

# Matches also the last part of a dotted name, such as config.ssl.key.password.
_SECRETS = re.compile(
    r"(?i)([?&](?:(?:[\w.-]+\.)?(?:password|passwd|secret|token|key|sslpassword|pem)"
    r"|\w*(?:secret_access_key|session_token|account_key|storage_key|sas_key|sas_token|client_secret|bearer_token))=)"
    r"[^&#]*"
)
# A password may contain characters that should have been encoded. Mask too much rather than too little.
_USERINFO = re.compile(r"(?<=://)([^/?#@:\s]*):([^/?#\s]*|[^@\s]*)@")
# A user name without a password is not masked, except for NATS, where it is a token.
_TOKEN = re.compile(r"(?i)\b(natss?://)[^/?#@:\s]+@")


def store_url(given: str | None = None, environment: Mapping[str, str] = os.environ) -> str:
    """Return the given store URL, else that of the environment, else the embedded default."""
    return given or environment.get(STORE_VARIABLE) or DEFAULT_STORE


def mask_url(url: str) -> str:
    """Return a URL for display, with passwords and other secrets masked."""
    return _SECRETS.sub(r"\1***", _TOKEN.sub(r"\1***@", _USERINFO.sub(r"\1:***@", url)))


def url_scheme(url: str) -> str:
    """Return the scheme in lower case; raise `UsageError` with an example if the text is not a URL."""
    scheme, colon, _ = url.partition(":")
    if not colon or not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme):
        raise UsageError(f"invalid URL {mask_url(url)!r}; expected one such as sqlite:///penstock.db or file:///events")
    return scheme.lower()


def url_options(url: str) -> dict[str, str]:
    """Return the query part of a URL as a mapping."""
    return dict(parse_qsl(urlsplit(url).query, keep_blank_values=True))
