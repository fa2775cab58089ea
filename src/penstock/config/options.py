"""Options in the query part of a destination's URL. Unknown and malformed options raise `UsageError`."""

import ssl
from collections.abc import Callable, Collection, Mapping

from penstock.config.urls import mask_url, url_options
from penstock.model.errors import UsageError

TLS_OPTIONS = frozenset({"ssl_ca_certs", "ssl_certfile", "ssl_keyfile"})
_TLS_SCHEMES = frozenset({"amqps", "https", "kafkas", "natss", "rediss", "valkeys"})
_FLAGS = {"true": True, "false": False}


def known_options(url: str, known: Collection[str] = (), prefix: str | None = None) -> dict[str, str]:
    """Return the URL's options. Reject names not in `known`: a misspelt option would otherwise have no effect.

    Names that begin with `prefix` are accepted; the client library checks them.
    """
    try:
        options = url_options(url)
    except ValueError as error:
        raise UsageError(f"invalid URL {mask_url(url)}: {error}") from error
    for name in options:
        if name not in known and not (prefix and name.startswith(prefix)):
            shown = [*sorted(known), *([f"{prefix}…"] if prefix else [])]
            supported = ", ".join(shown) or "none"
            raise UsageError(f"unknown option {name!r} for {url.partition(':')[0]}:; supported: {supported}")
    return options


def flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    if name not in options:
        return default
    value = options[name].lower()
    if value not in _FLAGS:
        raise UsageError(f"{name} must be true or false, got {options[name]!r}")
    return _FLAGS[value]


def whole_number(options: Mapping[str, str], name: str) -> int | None:
    """Return an integer option of 1 or more; None if the option is absent."""
    if name not in options:
        return None
    value = options[name]
    if not (value.isascii() and value.isdecimal() and int(value) >= 1):
        raise UsageError(f"{name} must be a whole number of at least 1, got {value!r}")
    return int(value)


def seconds(options: Mapping[str, str], name: str, default: float) -> float:
    """Return an option in seconds, which must be positive and finite."""
    try:
        value = float(options.get(name, default))
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise UsageError(f"{name} must be a number greater than 0, got {options[name]!r}")
    return value


def timeout_option(options: Mapping[str, str]) -> float:
    """Return the destination timeout in seconds. The default is shorter than the grace period of a relay."""
    return seconds(options, "timeout_seconds", 5.0)


def uses_tls(scheme: str, options: Mapping[str, str]) -> bool:
    """Return whether the scheme uses TLS. Reject TLS options of other schemes: they would have no effect."""
    given = sorted(name for name in options if name.startswith(("ssl_", "tls_")))
    if given and scheme not in _TLS_SCHEMES:
        raise UsageError(f"option {given[0]!r} requires TLS; use {scheme}s: instead of {scheme}:")
    return scheme in _TLS_SCHEMES


def tls_context(
    options: Mapping[str, str], default: Callable[[], ssl.SSLContext] = ssl.create_default_context
) -> ssl.SSLContext:
    """Return a TLS context from the options. It always verifies the server's certificate and host name.

    `default` creates the context if the options name no certificate authorities; it trusts the usual ones.
    """
    if "ssl_keyfile" in options and "ssl_certfile" not in options:
        raise UsageError("missing ssl_certfile; ssl_keyfile requires it")
    try:
        authorities = options.get("ssl_ca_certs")
        context = ssl.create_default_context(cafile=authorities) if authorities else default()
        if "ssl_certfile" in options:
            # Pass a dummy password for an encrypted key: otherwise OpenSSL would prompt on the terminal and wait.
            context.load_cert_chain(options["ssl_certfile"], options.get("ssl_keyfile"), password=lambda: "-")
    except (OSError, ValueError) as error:
        given = ", ".join(f"{name}={options[name]}" for name in sorted(TLS_OPTIONS & options.keys()))
        raise UsageError(f"cannot read the TLS certificates ({given}): {error}") from error
    return context
