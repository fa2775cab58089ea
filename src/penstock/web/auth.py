"""ASGI middleware of every server: checks a request's token and size before the request is parsed."""

import hmac
import json
from collections.abc import Collection, Mapping, Sequence
from http import HTTPStatus

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class ProblemResponse(Response):
    """A problem document (RFC 9457), encoded in ASCII, so that text from a request can't cause an encoding error."""

    media_type = "application/problem+json"

    def __init__(
        self,
        status: int,
        detail: str,
        errors: Sequence[Mapping[str, str]] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        document = {
            "type": "about:blank",
            "title": HTTPStatus(status).phrase,
            "status": status,
            "detail": detail,
            "errors": list(errors),
        }
        super().__init__(json.dumps(document), status, headers)


class RequestGuard:
    """Accepts requests with one of the tokens, if there are any, and a body of at most `max_body_bytes`."""

    def __init__(
        self, app: ASGIApp, tokens: Sequence[str], max_body_bytes: int, open_paths: Collection[str] = frozenset()
    ) -> None:
        self.app = app
        self._tokens = [token.encode() for token in tokens]
        self._max_body_bytes = max_body_bytes
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if scope["path"] not in self._open_paths and not self._authorized(scope):
            refusal = ProblemResponse(
                401, "missing or wrong token; use Authorization: Bearer TOKEN", headers={"WWW-Authenticate": "Bearer"}
            )
            await refusal(scope, receive, send)
            return
        body = await self._read(receive)
        if body is None:
            too_large = ProblemResponse(
                413, f"request body must be at most {self._max_body_bytes} bytes", headers={"Connection": "close"}
            )
            await too_large(scope, receive, send)
            return
        await self.app(scope, _with_body(body, receive), send)

    def _authorized(self, scope: Scope) -> bool:
        """Compare all tokens in constant time, so that the response time reveals nothing."""
        if not self._tokens:
            return True
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        scheme, _, token = given.partition(b" ")
        matches = [hmac.compare_digest(token.strip(), known) for known in self._tokens]
        return scheme.lower() == b"bearer" and any(matches)

    async def _read(self, receive: Receive) -> bytes | None:
        chunks, size, more = [], 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                break
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            more = message.get("more_body", False)
            if size > self._max_body_bytes:
                return None
        return b"".join(chunks)


def _with_body(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that yields the body once, then the messages that follow, such as a disconnect."""
    given = False

    async def received() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return received
