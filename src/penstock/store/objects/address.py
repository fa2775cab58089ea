"""The URLs of queues on object storage, and what their options mean.

    objects+s3://bucket/prefix?region=eu-central-1     objects+gs://bucket/prefix
    objects+az://container/prefix                      objects+file:///var/queue      objects+memory://name

Options in the query that are not ours go to obstore as they are: region, endpoint, access_key_id, ...
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from penstock.config import mask_url, needs_extra, url_options
from penstock.errors import UnknownScheme, UsageError
from penstock.store.objects.bucket import Bucket, FolderBucket, ObstoreBucket

SCHEMES = ("s3", "gs", "az", "file", "memory")
LISTEN = "127.0.0.1:0"
BROKER_SECONDS = 10.0
WAIT_SECONDS = 60.0
REQUEST_SECONDS = 10.0
GROUP = 10_000
# One that waits for long isn't asked again: a broker's lease goes on meanwhile, and its pass tries again itself.
RETRIES = {"max_retries": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A queue's URL, taken apart."""

    shown: str
    scheme: str
    bucket: str
    prefix: str
    listen: str = LISTEN
    advertise: str | None = None
    candidate: bool = True
    """Whether this process may become the broker."""
    always: bool = False
    """Whether it wants to be the broker, with or without work."""
    broker_seconds: float = BROKER_SECONDS
    wait_seconds: float = WAIT_SECONDS
    """How long a verb looks for a broker before it gives up."""
    group: int = GROUP
    """How many verbs go into one write at most."""
    expiry: bool = True
    """Whether every pass takes back expired leases, or only `reap` does."""
    storage: Mapping[str, str] = field(default_factory=dict)


def parse(url: str, settings: Mapping[str, Any]) -> Address:
    """Options may stand in the URL or in `StoreOptions.settings`, which go first."""
    parts = urlsplit(url)
    scheme = parts.scheme.lower().removeprefix("objects+")
    if scheme not in SCHEMES:
        known = ", ".join(f"objects+{name}://" for name in SCHEMES)
        raise UnknownScheme(f"no object store answers to {mask_url(url)!r}; known ones: {known}")
    options = {**url_options(url), **{name: str(value) for name, value in settings.items()}}
    path = unquote(parts.path)
    if scheme in ("s3", "gs", "az") and not parts.netloc:
        raise UsageError(f"{mask_url(url)!r} names no bucket; one looks like objects+s3://bucket/prefix")
    if scheme == "file" and (parts.netloc or not path.strip("/")):
        raise UsageError(f"{mask_url(url)!r} names no folder; one looks like objects+file:///var/queue")
    broker, expiry = options.pop("broker", "auto"), options.pop("expiry", "pass")
    _among("broker", broker, ("auto", "never", "always"))
    _among("expiry", expiry, ("pass", "reap"))
    return Address(
        shown=mask_url(url),
        scheme=scheme,
        bucket=parts.netloc,
        prefix=path if scheme == "file" else path.strip("/"),
        listen=options.pop("listen", LISTEN),
        advertise=options.pop("advertise", None),
        candidate=broker != "never",
        always=broker == "always",
        broker_seconds=_number(options, "broker_seconds", BROKER_SECONDS),
        wait_seconds=_number(options, "wait_seconds", WAIT_SECONDS),
        group=int(_number(options, "group", GROUP)),
        expiry=expiry == "pass",
        storage=options,
    )


def _among(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UsageError(f"{name} is one of {', '.join(known)}, not {value!r}")


def _number(options: dict[str, str], name: str, default: float) -> float:
    text = options.pop(name, None)
    try:
        number = default if text is None else float(text)
    except ValueError:
        raise UsageError(f"{name} is a number, not {text!r}") from None
    if number <= 0:
        raise UsageError(f"{name} must be greater than 0")
    return number


_memories: dict[str, Any] = {}
_memories_lock = threading.Lock()


def open_bucket(address: Address) -> Bucket:
    """The objects behind an address. Nothing connects yet."""
    if address.scheme == "file":
        return FolderBucket(Path(address.prefix), address.shown)
    with needs_extra("a queue on object storage", "objects"):
        from obstore import store as stores
    if address.scheme == "memory":
        with _memories_lock:
            return ObstoreBucket(_memories.setdefault(address.bucket, stores.MemoryStore()), address.shown)
    try:
        return ObstoreBucket(_cloud(stores, address), address.shown)
    except Exception as error:  # whatever its parsers stumble over, perhaps with a secret in its words
        raise UsageError(f"{address.shown!r} has options that obstore doesn't take: {type(error).__name__}") from error


def _cloud(stores: Any, address: Address) -> Any:
    config = dict(address.storage)
    plain = config.get("endpoint", "").startswith("http://")
    common: dict[str, Any] = {
        "prefix": address.prefix or None,
        "client_options": {"allow_http": plain, "timeout": f"{REQUEST_SECONDS:g}s"},
        "retry_config": RETRIES,
    }
    match address.scheme:
        case "s3":
            return stores.S3Store(address.bucket, config={"conditional_put": "etag", **config}, **common)
        case "gs":
            return stores.GCSStore(address.bucket, config=config, **common)
        case _:
            return stores.AzureStore(address.bucket, config=config, **common)
