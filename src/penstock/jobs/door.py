"""The door of the HTTP server: who has no token stays outside, and so does a request that is too large. Both are
turned away before anything of the request is looked at."""

import hmac
from collections.abc import Sequence

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.jobs.problems import ProblemResponse

OPEN_PATHS = frozenset({"/health", "/openapi.json"})


class Door:
    """Lets requests in that have one of the tokens, where there are any, and at most so many bytes."""

    def __init__(self, app: ASGIApp, tokens: Sequence[str], max_body_bytes: int) -> None:
        self.app = app
        self._tokens = [token.encode() for token in tokens]
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if scope["path"] not in OPEN_PATHS and not self._knows(scope):
            refusal = ProblemResponse(
                401, "a token is needed: Authorization: Bearer TOKEN", headers={"WWW-Authenticate": "Bearer"}
            )
            await refusal(scope, receive, send)
            return
        body = await self._read(receive)
        if body is None:
            too_large = ProblemResponse(
                413, f"a request may have {self._max_body_bytes} bytes at most", headers={"Connection": "close"}
            )
            await too_large(scope, receive, send)
            return
        await self.app(scope, _again(body, receive), send)

    def _knows(self, scope: Scope) -> bool:
        """Every token is compared, and in full, so that the time it takes says nothing."""
        if not self._tokens:
            return True
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        scheme, _, token = given.partition(b" ")
        matches = [hmac.compare_digest(token.strip(), known) for known in self._tokens]
        return scheme.lower() == b"bearer" and any(matches)

    async def _read(self, receive: Receive) -> bytes | None:
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return body
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > self._max_body_bytes:
                return None
        return body


def _again(body: bytes, receive: Receive) -> Receive:
    """The body once more, and after it what comes: a caller who leaves is to be heard."""
    given = False

    async def received() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return received
