"""The HTTP server: permitted addresses, shutdown, and sockets inherited by a forked child."""

import os
import socket

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from penstock.model.errors import PenstockError, UsageError
from penstock.web.auth import RequestGuard
from penstock.web.server import HttpServer, parse_address, require_safe


async def hello(request: Request) -> PlainTextResponse:
    return PlainTextResponse((await request.body()).decode() or "hello")


def app(*tokens: str) -> RequestGuard:
    routes = [Route("/", hello, methods=["GET", "POST"]), Route("/open", hello)]
    return RequestGuard(Starlette(routes=routes), tokens, 1_000, open_paths={"/open"})


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.8.8.8"])
def test_loopback_needs_no_token(host: str) -> None:
    require_safe(host, (), "--token")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "jobs.example.com", ""])
def test_other_addresses_need_a_token(host: str) -> None:
    require_safe(host, ["secret"], "--token")
    with pytest.raises(UsageError, match=r"missing token .* set --token"):
        require_safe(host, (), "--token")


@pytest.mark.parametrize("token", ["", "two words", "ü"])
def test_unusable_token_is_refused(token: str) -> None:
    with pytest.raises(UsageError, match="ASCII"):
        require_safe("127.0.0.1", [token], "--token")


def test_address_is_parsed() -> None:
    assert parse_address("127.0.0.1:8080", "--health") == ("127.0.0.1", 8080)
    assert parse_address("[::1]:0", "--health") == ("::1", 0)
    for wrong in ("", "8080", ":8080", "host:", "host:x", "host:65536", "host:-1"):
        with pytest.raises(UsageError, match="--health"):
            parse_address(wrong, "--health")


def test_guard_checks_token_and_size() -> None:
    with HttpServer(app("secret")) as server:
        token = {"Authorization": "Bearer secret"}
        assert httpx.get(server.url).status_code == 401
        assert httpx.get(f"{server.url}/open").text == "hello"
        assert httpx.post(server.url, content=b"x" * 1_000, headers=token).text == "x" * 1_000
        assert httpx.post(server.url, content=b"x" * 1_001, headers=token).status_code == 413


def test_port_in_use_is_an_error() -> None:
    with HttpServer(app()) as server, pytest.raises(PenstockError, match="in use"):
        HttpServer(app(), port=server.port)


def test_forked_child_keeps_no_port_open() -> None:
    """Otherwise a child that outlives the server would accept connections and never answer."""
    waiting, ending = os.pipe()
    started, starting = os.pipe()
    with HttpServer(app()) as server:
        port = server.port
        assert httpx.get(server.url).text == "hello"
        child = os.fork()
        if child == 0:
            os.close(ending)
            os.write(starting, b"1")  # the fork hooks have run
            os.read(waiting, 1)
            os._exit(0)
    try:
        assert os.read(started, 1)
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0
    finally:
        for descriptor in (ending, waiting, started, starting):
            os.close(descriptor)
        os.waitpid(child, 0)
