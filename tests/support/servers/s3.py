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
    """A versitygw on 127.0.0.1: the S3 protocol over a folder, with atomic conditional writes.

    A confirmed object survives a crash of the server. `fsync` has no effect.
    """

    name = "S3"
    end_signal = signal.SIGKILL
    _binary: Path

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def create_bucket(self, name: str) -> str:
        """Create a bucket, which is a folder on the server's disk, and return its name."""
        (self._buckets / name).mkdir()
        return name

    def url(self, bucket: str, prefix: str = "", *, endpoint: str | None = None, **options: Any) -> str:
        """Return the URL of a queue in a bucket, for `open_store`."""
        settings = {**self._access(endpoint or self.endpoint), **options}
        return f"objects+s3://{bucket}/{prefix}?{urlencode(settings)}"

    def bucket(self, name: str) -> Any:
        """Open a bucket with obstore."""
        with needs_extra("an S3 server for tests", "objects"):
            from obstore import store as stores
        made: Any = stores.S3Store  # obstore types each setting separately; these come from a dict
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
        """Return True if the server accepts the secret, which no other server has."""
        with suppress(Exception):
            list(self.bucket("ready").list())
            return True
        return False
