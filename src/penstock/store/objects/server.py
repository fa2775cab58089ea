"""The broker's HTTP server. Requests wait for their commit as futures of one event loop, without a thread for each.

The server accepts every request with the broker's secret, which is in the document: a process that can read the queue
can also send requests to its broker. Imported when a process becomes a candidate, because the module needs uvicorn.
"""

import asyncio
import logging
import secrets
import socket
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any
from uuid import uuid4

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse
from starlette.routing import Route

from penstock.model.errors import NotSupported, PenstockError
from penstock.store.objects.address import Address
from penstock.store.objects.bucket import Bucket
from penstock.store.objects.client import PATH
from penstock.store.objects.document import MICROS, BrokerRow
from penstock.store.objects.group_commit import Committer, Micros, NotTheBroker, Request, wall_micros
from penstock.store.objects.operations import CHANGES, QUERIES
from penstock.web.auth import RequestGuard
from penstock.web.server import HttpServer, parse_address

log = logging.getLogger(__name__)

BODY_LIMIT = 256 * 1024 * 1024
WILDCARDS = ("0.0.0.0", "::")  # noqa: S104


class Candidate:
    """A process that is or may become the broker: its committer, and the server for the other processes."""

    def __init__(self, address: Address, bucket: Bucket, micros: Micros) -> None:
        host, port = parse_address(address.listen, "listen")
        secret = secrets.token_urlsafe(24)
        app = Starlette(routes=[Route(PATH, self._serve, methods=["POST"])])
        self._server = HttpServer(RequestGuard(app, [secret], BODY_LIMIT), host, port, name="penstock-broker")
        advertised = address.advertise or _advertised(host, self._server.port)
        expires_at = wall_micros() + int(address.broker_seconds * MICROS)
        self.committer = Committer(address, bucket, micros, BrokerRow(uuid4().hex, advertised, secret, expires_at))
        self._asked = False
        self._server.__enter__()

    def stop(self) -> None:
        """Answer the waiting requests, return the broker lease and stop the server."""
        self.committer.stop()
        if self._asked:
            self._server.__exit__(None, None, None)
        else:  # don't wait the 0.2 s that uvicorn takes to end in a process that has served no request
            self._server.stop()

    async def _serve(self, request: HttpRequest) -> JSONResponse:
        self._asked = True
        try:
            return JSONResponse(await self._execute(await request.json()))
        except NotTheBroker:
            return JSONResponse(None, HTTPStatus.CONFLICT)
        except PenstockError as error:
            return JSONResponse((type(error).__name__, str(error)), HTTPStatus.UNPROCESSABLE_ENTITY)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            log.warning("request_malformed error=%r", error)
            return JSONResponse("malformed request", HTTPStatus.BAD_REQUEST)

    async def _execute(self, asked: Mapping[str, Any]) -> Any:
        request = Request.from_json(asked)
        if request.operation in QUERIES:
            return await run_in_threadpool(self.committer.query, request.operation, request.args)
        if request.operation not in CHANGES:
            raise NotSupported(f"unknown operation {request.operation!r}; upgrade the broker")
        if not self.committer.leads:
            raise NotTheBroker(None)
        loop = asyncio.get_running_loop()
        done = loop.create_future()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop was closed: the server has stopped, and the client asks again
                loop.call_soon_threadsafe(_resolve, done)

        self.committer.submit(request, wake)
        await done
        return request.reply()


def _resolve(done: "asyncio.Future[None]") -> None:
    if not done.done():
        done.set_result(None)


def _advertised(host: str, port: int) -> str:
    name = socket.gethostname() if host in WILDCARDS else host
    return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"
