"""The options in a destination's URL, after its question mark: an unknown or malformed one is the caller's mistake."""

import ssl
from collections.abc import Callable, Collection, Mapping

from penstock.config.urls import mask_url, url_options
from penstock.model.errors import UsageError

TLS_OPTIONS = frozenset({"ssl_ca_certs", "ssl_certfile", "ssl_keyfile"})
_TLS_SCHEMES = frozenset({"amqps", "https", "kafkas", "natss", "rediss", "valkeys"})
_FLAGS = {"true": True, "false": False}


def known_options(url: str, known: Collection[str] = (), prefix: str | None = None) -> dict[str, str]:
    """The URL's options, all of them among `known`: a misspelt one must not be silently without effect.

    Those that begin with `prefix` are for the client library to know.
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
    """A whole number of 1 or more, or None where the option is not given."""
    if name not in options:
        return None
    value = options[name]
    if not (value.isascii() and value.isdecimal() and int(value) >= 1):
        raise UsageError(f"{name} must be a whole number of at least 1, got {value!r}")
    return int(value)


def seconds(options: Mapping[str, str], name: str, default: float) -> float:
    """A time above 0."""
    try:
        value = float(options.get(name, default))
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise UsageError(f"{name} must be a number greater than 0, got {options[name]!r}")
    return value


def timeout_option(options: Mapping[str, str]) -> float:
    """Seconds to wait for a destination. The default is less than a relay that is to stop waits for its tasks."""
    return seconds(options, "timeout_seconds", 5.0)


def uses_tls(scheme: str, options: Mapping[str, str]) -> bool:
    """True if the scheme means TLS. With another, an option for TLS is refused: it would have no effect."""
    given = sorted(name for name in options if name.startswith(("ssl_", "tls_")))
    if given and scheme not in _TLS_SCHEMES:
        raise UsageError(f"option {given[0]!r} requires TLS; use {scheme}s: instead of {scheme}:")
    return scheme in _TLS_SCHEMES


def tls_context(
    options: Mapping[str, str], default: Callable[[], ssl.SSLContext] = ssl.create_default_context
) -> ssl.SSLContext:
    """Return a context from the TLS options. It always checks the server's certificate and name.

    `default` returns one that trusts the usual authorities, where the options name none.
    """
    if "ssl_keyfile" in options and "ssl_certfile" not in options:
        raise UsageError("missing ssl_certfile; ssl_keyfile requires it")
    try:
        authorities = options.get("ssl_ca_certs")
        context = ssl.create_default_context(cafile=authorities) if authorities else default()
        if "ssl_certfile" in options:
            # Asked for a password, the terminal would wait for somebody to type it.
            context.load_cert_chain(options["ssl_certfile"], options.get("ssl_keyfile"), password=lambda: "-")
    except (OSError, ValueError) as error:
        given = ", ".join(f"{name}={options[name]}" for name in sorted(TLS_OPTIONS & options.keys()))
        raise UsageError(f"cannot read the TLS certificates ({given}): {error}") from error
    return context
