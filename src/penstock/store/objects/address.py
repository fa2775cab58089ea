"""URLs of queues on object storage, and their options.

    objects+s3://bucket/prefix?region=eu-central-1     objects+gs://bucket/prefix
    objects+az://container/prefix                      objects+file:///var/queue      objects+memory://name

Other options in the query go to obstore unchanged: region, endpoint, access_key_id, ...
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from penstock.config.extras import needs_extra
from penstock.config.urls import mask_url, url_options
from penstock.model.errors import UnknownScheme, UsageError
from penstock.store.objects.bucket import Bucket, FolderBucket, ObstoreBucket

SCHEMES = ("s3", "gs", "az", "file", "memory")
LISTEN = "127.0.0.1:0"
BROKER_SECONDS = 10.0
WAIT_SECONDS = 60.0
REQUEST_SECONDS = 10.0
# Few, because the broker lease keeps running during retries, and a commit pass repeats its write itself.
RETRIES = {"max_retries": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """The parts of a queue's URL."""

    shown: str
    scheme: str
    bucket: str
    prefix: str
    listen: str = LISTEN
    advertise: str | None = None
    candidate: bool = True
    """True if this process may become the broker."""
    broker_seconds: float = BROKER_SECONDS
    wait_seconds: float = WAIT_SECONDS
    """Seconds after which an operation that finds no broker, or gets no answer, fails."""
    expiry: bool = True
    """True if every commit pass reaps expired leases, not only `reap`."""
    storage: Mapping[str, str] = field(default_factory=dict)


def parse(url: str, settings: Mapping[str, Any]) -> Address:
    """Parse a URL. Options in `settings` override those in the URL."""
    parts = urlsplit(url)
    scheme = parts.scheme.lower().removeprefix("objects+")
    if scheme not in SCHEMES:
        known = ", ".join(f"objects+{name}" for name in SCHEMES)
        raise UnknownScheme(f"unknown store scheme {parts.scheme!r}; supported: {known}")
    options = {**url_options(url), **{name: str(value) for name, value in settings.items()}}
    path = unquote(parts.path)
    if scheme in ("s3", "gs", "az") and not parts.netloc:
        raise UsageError(f"invalid URL {mask_url(url)!r}; expected a bucket such as objects+s3://bucket/prefix")
    if scheme == "file" and (parts.netloc or not path.strip("/")):
        raise UsageError(f"invalid URL {mask_url(url)!r}; expected a folder such as objects+file:///var/queue")
    return Address(
        shown=mask_url(url),
        scheme=scheme,
        bucket=parts.netloc,
        prefix=path if scheme == "file" else path.strip("/"),
        listen=options.pop("listen", LISTEN),
        advertise=options.pop("advertise", None),
        candidate=_is_first(options, "broker", ("auto", "never")),
        broker_seconds=_number(options, "broker_seconds", BROKER_SECONDS),
        wait_seconds=_number(options, "wait_seconds", WAIT_SECONDS),
        expiry=_is_first(options, "expiry", ("pass", "reap")),
        storage=options,
    )


def _is_first(options: dict[str, str], name: str, known: tuple[str, str]) -> bool:
    """Return whether an option has the first of its two values, which is the default."""
    value = options.pop(name, known[0])
    if value not in known:
        raise UsageError(f"unknown value {value!r} for {name}; expected one of {', '.join(known)}")
    return value == known[0]


def _number(options: dict[str, str], name: str, default: float) -> float:
    text = options.pop(name, None)
    try:
        number = default if text is None else float(text)
    except ValueError:
        raise UsageError(f"{name} must be a number, got {text!r}") from None
    if number <= 0:
        raise UsageError(f"{name} must be greater than 0, got {number:g}")
    return number


_memories: dict[str, Any] = {}


def open_bucket(address: Address) -> Bucket:
    """Open the bucket of an address, without connecting yet."""
    if address.scheme == "file":
        return FolderBucket(Path(address.prefix), address.shown)
    with needs_extra("a queue on object storage", "objects"):
        from obstore import store as stores
    if address.scheme == "memory":
        return ObstoreBucket(_memories.setdefault(address.bucket, stores.MemoryStore()), address.shown)
    config = {"conditional_put": "etag", **address.storage} if address.scheme == "s3" else {**address.storage}
    client = {
        "allow_http": config.get("endpoint", "").startswith("http://"),
        "timeout": f"{REQUEST_SECONDS:g}s",
    }
    url = f"{address.scheme}://{address.bucket}/{quote(address.prefix)}"
    from_url: Any = stores.from_url
    try:
        store = from_url(url, config=config, client_options=client, retry_config=RETRIES)
    except Exception as error:  # of any kind, and its message may contain a secret
        raise UsageError(f"invalid options for obstore in {address.shown!r}: {type(error).__name__}") from error
    return ObstoreBucket(store, address.shown)
