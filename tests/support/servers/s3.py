"""An S3 server for tests."""

import signal
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from penstock.config.extras import needs_extra
from tests.support.installations import find_s3
from tests.support.servers.base import Server

KEY = "penstock"
REGION = "us-east-1"


class S3Server(Server):
    """A versitygw on 127.0.0.1: S3's protocol over a folder, with conditional writes that are atomic.

    An object that it has confirmed survives its own crash; there is nothing that `fsync` could change.
    """

    name = "S3"
    end_signal = signal.SIGKILL
    _binary: Path

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def create_bucket(self, name: str) -> str:
        """A new bucket: a folder, where the server keeps its objects."""
        (self._buckets / name).mkdir()
        return name

    def url(self, bucket: str, prefix: str = "", *, endpoint: str | None = None, **options: Any) -> str:
        """A queue in a bucket, as `open_store` takes it."""
        settings = {**self._access(endpoint or self.endpoint), **options}
        return f"objects+s3://{bucket}/{prefix}?{urlencode(settings)}"

    def bucket(self, name: str) -> Any:
        """A bucket, as obstore sees it."""
        with needs_extra("an S3 server for tests", "objects"):
            from obstore import store as stores
        made: Any = stores.S3Store  # its settings are typed one by one, and ours are a URL's
        return made(
            name,
            config=self._access(self.endpoint),
            client_options={"allow_http": True},
            retry_config={"max_retries": 0},
        )

    def _access(self, endpoint: str) -> dict[str, str]:
        return {
            "endpoint": endpoint,
            "region": REGION,
            "access_key_id": KEY,
            "secret_access_key": self._secret,
            "virtual_hosted_style_request": "false",
            "conditional_put": "etag",
        }

    @property
    def _secret(self) -> str:
        return self.folder.name

    @property
    def _buckets(self) -> Path:
        return self.folder / "buckets"

    def _prepare(self) -> None:
        self._binary = find_s3()
        self._buckets.mkdir()
        self.create_bucket("ready")

    def _command(self) -> list[str]:
        access = ["--access", KEY, "--secret", self._secret, "--region", REGION]
        address = ["--port", f"127.0.0.1:{self.port}"]
        settings = [f"--{name}={value}" for name, value in self.settings.items()]
        return [str(self._binary), *access, *address, *settings, "--quiet", "posix", str(self._buckets)]

    def _answers(self) -> bool:
        """Whether it takes the secret, which no other server has."""
        with suppress(Exception):
            list(self.bucket("ready").list())
            return True
        return False
