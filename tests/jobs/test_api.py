"""The jobs HTTP API on a real server, through `JobsClient` and with plain HTTP requests."""

import json
import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import httpx
import pytest
from http_server import TOKEN, client_of, served
from pydantic import BaseModel

from penstock.jobs import ClaimedJob, JobContext, Jobs, JobsClient
from penstock.model.errors import (
    JobError,
    JobFailed,
    JobLost,
    JobNotFound,
    JobSettled,
    JobUnfinished,
    StoreUnavailable,
    UsageError,
)
from penstock.model.lifecycle import State
from penstock.web.server import HttpServer
from tests.support.processes import free_port

SOON = 30.0


class Email(BaseModel):
    to: str
    copies: int = 1


@pytest.fixture
def client(live: Jobs) -> Iterator[JobsClient]:
    with client_of(live) as opened:
        yield opened


@pytest.fixture
def server(live: Jobs) -> Iterator[HttpServer]:
    """A server that requires no token."""
    with served(live) as started:
        yield started


@pytest.fixture
def http(server: HttpServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=SOON) as opened:
        yield opened


def claimed(client: JobsClient, *types: str) -> ClaimedJob:
    job = client.claim("worker", types or None)
    assert job is not None
    return job


class TestClient:
    def test_client_submits_claims_and_completes_job(self, client: JobsClient) -> None:
        job_id = client.submit("email:send", {"to": "ä"}, priority=3, headers={"tenant": "eu"}, max_attempts=5)
        job = claimed(client, "email:send")
        assert (job.job_id, job.type, job.payload, job.attempts) == (job_id, "email:send", {"to": "ä"}, 1)
        assert (job.priority, job.max_attempts, job.headers["tenant"]) == (3, 5, "eu")
        client.heartbeat(job, {"percent": 50})
        held = client.get(job_id)
        assert (held.state, held.progress, held.worker) == (State.CLAIMED, {"percent": 50}, "worker")
        client.complete(job, ["sent"])
        client.complete(job, ["sent"])
        assert client.wait(job_id).result == ["sent"]
        assert client.stats().as_json() == {
            "completed_total": 1,
            "types": [{"type": "email:send", "pending": 0, "claimed": 0, "completed": 1, "dead": 0}],
        }

    def test_client_get_and_list_match_queue(self, live: Jobs, client: JobsClient) -> None:
        ids = [client.submit("ab"[number % 2], number) for number in range(3)]
        client.cancel(ids[0], "no")
        assert client.get(ids[0]) == live.get(ids[0])
        assert client.list().jobs == live.list().jobs
        assert client.list(State.PENDING, "a", limit=1).jobs == [live.get(ids[2])]
        first = client.list(limit=2)
        assert [job.job_id for job in (*first.jobs, *client.list(after=first.after).jobs)] == ids[::-1]

    def test_client_fails_and_releases_jobs(self, client: JobsClient) -> None:
        job_id = client.submit("a", max_attempts=2)
        client.release(claimed(client))
        assert client.fail(claimed(client), "broken", delay=0) is State.PENDING
        assert client.fail(claimed(client), "broken again") is State.DEAD
        with pytest.raises(JobFailed, match="broken again"):
            client.wait(job_id)

    def test_client_raises_errors_of_server(self, client: JobsClient) -> None:
        job_id = client.submit("a")
        job = claimed(client)
        client.cancel(job_id, "called off")
        for verb in (client.heartbeat, client.complete, client.release, lambda held: client.fail(held, "x")):
            with pytest.raises(JobLost, match="no longer claimed by this worker: it is dead: called off"):
                verb(job)
        with pytest.raises(JobSettled, match="already DEAD"):
            client.cancel(job_id, "another reason")
        with pytest.raises(JobNotFound, match="does not exist in job queue 'jobs'"):
            client.get(uuid4())
        with pytest.raises(JobError, match="already belongs to another event"):
            client.submit("a", {"other": 1}, job_id=job_id)
        with pytest.raises(UsageError, match="priority"):
            client.submit("a", priority=101)
        with pytest.raises(JobUnfinished):
            client.wait(client.submit("a"), timeout_seconds=0)

    def test_repeated_submit_adds_no_job(self, client: JobsClient) -> None:
        job_id = uuid4()
        assert client.submit("a", job_id=job_id) == client.submit("a", job_id=job_id) == job_id
        assert len(client.list().jobs) == 1

    def test_client_work_loop_runs_jobs(self, client: JobsClient) -> None:
        stop = threading.Event()

        def double(payload: int, context: JobContext) -> int:
            context.progress("half")
            return 2 * payload

        with ThreadPoolExecutor(1) as thread:
            working = thread.submit(client.work, {"double": double}, "worker", stop=stop, concurrency=2)
            ids = [client.submit("double", number) for number in range(5)]
            assert [client.wait(job_id, SOON).result for job_id in ids] == [0, 2, 4, 6, 8]
            stop.set()
            working.result(SOON)

    def test_unreachable_server_is_store_unavailable(self) -> None:
        with JobsClient(f"http://127.0.0.1:{free_port()}") as client, pytest.raises(StoreUnavailable, match="reach"):
            client.submit("a")

    def test_lost_answer_duplicates_no_submit(self, live: Jobs, server: HttpServer) -> None:
        """The first answer to the submit is lost, and the client sends the submit again. Claims are not repeated."""
        with Middleman(server) as between, JobsClient(between.url) as client:
            job_id = client.submit("a")
            assert between.lost == 1
            assert [job.job_id for job in live.list().jobs] == [job_id]
            between.lost = 0
            with pytest.raises(StoreUnavailable):
                client.claim("worker")
            assert live.get(job_id).state is State.CLAIMED


class Middleman:
    """A proxy to a server that drops the answer of the first connection, and whenever `lost` is reset to 0."""

    def __init__(self, server: HttpServer) -> None:
        self._target = httpx.URL(server.url)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.lost = 0
        self._thread = threading.Thread(target=self._pass_on, daemon=True)

    def __enter__(self) -> "Middleman":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(SOON)

    def _pass_on(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            with near, socket.create_connection((self._target.host, self._target.port or 80)) as far:
                far.sendall(_message(near))
                answer = _message(far)
                if self.lost:
                    near.sendall(answer.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n", 1))
                else:
                    self.lost += 1


def _message(sender: socket.socket) -> bytes:
    """Read one complete HTTP message."""
    read = b""
    while True:
        read += sender.recv(65_536)
        head, found, body = read.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head.lower())
        if found and len(body) == (int(length[1]) if length else 0):
            return read


class TestLongPolling:
    def test_waiting_claims_are_answered_by_submits(self, live: Jobs, http: httpx.Client) -> None:
        """Twenty claims wait at once without occupying server threads, so the submits are answered; each gets a job."""
        waiting = threading.Semaphore(0)
        look = live.store.ready

        def looked(*arguments: Any, **named: Any) -> bool:
            found = look(*arguments, **named)
            waiting.release()
            return found

        live.store.ready = looked  # type: ignore[method-assign]
        asked = {"types": ["a"], "wait_seconds": 60}
        with ThreadPoolExecutor(20) as threads:
            answers = [
                threads.submit(http.post, "/v1/jobs/claim", json={**asked, "worker_id": f"worker-{number}"})
                for number in range(20)
            ]
            for _ in answers:
                assert waiting.acquire(timeout=SOON)
            ids = {http.post("/v1/jobs", json={"type": "a", "payload": 1}).json()["job_id"] for _ in answers}
            assert {answer.result(SOON).json()["job_id"] for answer in answers} == ids

    def test_claim_without_job_is_no_content(self, http: httpx.Client) -> None:
        answer = http.post("/v1/jobs/claim", json={"worker_id": "worker", "wait_seconds": 0.05})
        assert (answer.status_code, answer.content) == (204, b"")

    def test_get_waits_for_job_to_settle(self, live: Jobs, http: httpx.Client) -> None:
        job_id = live.submit("a")
        job = live.claim("worker")
        assert job is not None
        with ThreadPoolExecutor(1) as thread:
            waiting = thread.submit(http.get, f"/v1/jobs/{job_id}", params={"wait_seconds": 60})
            live.complete(job, 7)
            assert waiting.result(SOON).json()["result"] == 7

    def test_claim_of_disconnected_client_takes_no_job(self, live: Jobs, server: HttpServer) -> None:
        body = json.dumps({"worker_id": "gone", "wait_seconds": 60})
        head = "POST /v1/jobs/claim HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        looked = threading.Event()
        heads = live.store.heads

        def looking(*arguments: Any, **named: Any) -> Any:
            found = heads(*arguments, **named)
            looked.set()
            return found

        live.store.heads = looking  # type: ignore[method-assign]
        host, port = httpx.URL(server.url).host, httpx.URL(server.url).port
        with socket.create_connection((host, port or 80)) as caller:
            caller.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
            assert looked.wait(SOON)
        live.submit("a")
        job = live.claim("here", wait_seconds=SOON)
        assert job is not None
        assert job.attempts == 1

    def test_stopping_server_answers_waiting_claims(self, live: Jobs) -> None:
        looked = threading.Event()
        heads = live.store.heads

        def looking(*arguments: Any, **named: Any) -> Any:
            looked.set()
            return heads(*arguments, **named)

        live.store.heads = looking  # type: ignore[method-assign]
        with ThreadPoolExecutor(1) as thread:
            with served(live) as server:
                asked = {"worker_id": "worker", "wait_seconds": 60}
                waiting = thread.submit(httpx.post, f"{server.url}/v1/jobs/claim", json=asked, timeout=SOON)
                assert looked.wait(SOON)
            assert waiting.result(SOON).status_code == 204


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
class TestToken:
    def test_request_without_valid_token_is_unauthorized(self, live: Jobs) -> None:
        with served(live, "other", TOKEN) as server, httpx.Client(base_url=server.url) as http:
            for given in (None, "", "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer ü"):
                headers = {} if given is None else {"Authorization": given.encode("latin-1")}
                answer = http.get("/v1/stats", headers=headers)
                assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
                assert answer.headers["content-type"] == "application/problem+json"
                assert "Authorization: Bearer TOKEN" in answer.json()["detail"]
            for token in ("other", TOKEN):
                assert http.get("/v1/stats", headers={"Authorization": f"Bearer {token}"}).status_code == 200
            assert http.get("/health").json() == {"status": "ok"}
            assert "/v1/jobs" in http.get("/openapi.json").json()["paths"]

    def test_oversized_request_is_refused(self, live: Jobs, http: httpx.Client) -> None:
        for body in (b"x" * 2_000_000, (b"x" * 500_000 for _ in range(4))):
            answer = http.post("/v1/jobs", content=body)
            assert (answer.status_code, answer.json()["title"]) == (413, "Request Entity Too Large")
        assert live.list().jobs == ()


HELD = {"lease": "A" * 75}


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
class TestProblems:
    @pytest.mark.parametrize(
        ("path", "body", "field"),
        [
            ("/v1/jobs", {}, "body.type"),
            ("/v1/jobs", {"type": "a\x00"}, "body.type"),
            ("/v1/jobs", {"type": ""}, "body.type"),
            ("/v1/jobs", {"type": "x" * 205}, "body.type"),
            ("/v1/jobs", {"type": "a", "max_attempts": 10**30}, "body.max_attempts"),
            ("/v1/jobs", {"type": "a", "delay_seconds": -1}, "body.delay_seconds"),
            ("/v1/jobs", {"type": "a", "job_id": "12"}, "body.job_id"),
            ("/v1/jobs", {"type": "a", "headers": {"a": "\x00"}}, "body.headers.a"),
            ("/v1/jobs", {"type": "a", "colour": "red"}, "body.colour"),
            ("/v1/jobs/claim", {"worker_id": "w", "wait_seconds": 61}, "body.wait_seconds"),
            ("/v1/jobs/claim", {"worker_id": "w", "types": []}, "body.types"),
            ("/v1/jobs/00000000-0000-4000-8000-000000000001/complete", {"lease": "x"}, "body.lease"),
            ("/v1/jobs/00000000-0000-4000-8000-000000000001/fail", HELD, "body.reason"),
        ],
    )
    def test_invalid_field_is_named_in_problem(self, http: httpx.Client, path: str, body: Any, field: str) -> None:
        answer = http.post(path, json=body)
        assert answer.headers["content-type"] == "application/problem+json"
        problem = answer.json()
        assert (answer.status_code, problem["status"], problem["title"]) == (422, 422, "Unprocessable Entity")
        assert field in [error["field"] for error in problem["errors"]]

    @pytest.mark.parametrize(
        "body",
        [
            b'{"type": "a", "payload": "\\ud800"}',
            b'{"type": "\\ud800"}',
            b'{"type": "a", "payload": NaN}',
            b'{"type": "a", "payload": 1e999}',
            b'{"type": "a", "payload": ' + b"1" * 5_000 + b"}",
            b'{"type": "a", "payload": ' + b"[" * 200 + b"]" * 200 + b"}",
            b'{"type": "a", "payload": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
            b'{"type": "a"',
            b"\xff",
            b"",
            b"null",
        ],
    )
    def test_unreadable_body_is_client_error(self, live: Jobs, http: httpx.Client, body: bytes) -> None:
        answer = http.post("/v1/jobs", content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code in (400, 422)
        assert answer.headers["content-type"] == "application/problem+json"
        assert live.list().jobs == ()

    @pytest.mark.parametrize(
        "query", ["stat=DEAD", "type=a&type=b", "limit=0", "state=dead", "after=99999999999999999999"]
    )
    def test_invalid_query_parameter_is_client_error(self, http: httpx.Client, query: str) -> None:
        answer = http.get(f"/v1/jobs?{query}")
        assert (answer.status_code, query.partition("=")[0] in answer.json()["detail"]) == (422, True)

    def test_unknown_job_path_or_method_is_client_error(self, http: httpx.Client) -> None:
        answer = http.get(f"/v1/jobs/{uuid4()}")
        assert (answer.status_code, answer.json()["title"]) == (404, "Not Found")
        assert "does not exist in job queue 'jobs'" in answer.json()["detail"]
        for path in ("/v2", "/v1/jobs/12", "/v1/jobs/%00", f"/v1/jobs/{uuid4()}x"):
            answer = http.get(path)
            assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
        for method, path, allowed in (("DELETE", "/v1/jobs", "GET, POST"), ("GET", "/v1/jobs/claim", "POST")):
            answer = http.request(method, path)
            assert (answer.status_code, answer.headers["allow"]) == (405, allowed)

    def test_lease_of_another_job_is_conflict(self, live: Jobs, http: httpx.Client) -> None:
        live.submit("a")
        job = live.claim("worker")
        assert job is not None
        other = live.submit("a")
        answer = http.post(f"/v1/jobs/{other}/complete", json={"lease": job.lease})
        assert (answer.status_code, "lease does not belong to job" in answer.json()["detail"]) == (409, True)

    def test_payload_not_matching_model_is_refused(self, live: Jobs, http: httpx.Client) -> None:
        live.models["email:send"] = Email
        answer = http.post("/v1/jobs", json={"type": "email:send", "payload": {"copies": 2}})
        assert (answer.status_code, "to: Field required" in answer.json()["detail"]) == (422, True)
        http.post("/v1/jobs", json={"type": "email:send", "payload": {"to": "ada"}})
        assert http.post("/v1/jobs/claim", json={"worker_id": "w"}).json()["payload"] == {"to": "ada"}


class TestStore:
    def test_extreme_payloads_are_unchanged(self, http: httpx.Client) -> None:
        for payload in (None, "\x00", 10**4_000, -1e308, {"": [{}]}, "\U0001f40b", 5e-324):
            job_id = http.post("/v1/jobs", json={"type": "a", "payload": payload}).json()["job_id"]
            assert http.get(f"/v1/jobs/{job_id}").json()["payload"] == payload
            assert http.post("/v1/jobs/claim", json={"worker_id": "w"}).json()["payload"] == payload

    def test_unusable_store_is_service_unavailable(self, live: Jobs, http: httpx.Client) -> None:
        with live.store.transaction() as connection:  # type: ignore[attr-defined]
            for table in ("penstock_dedupe", "penstock_claimed"):
                connection.exec_driver_sql(f"ALTER TABLE {table} RENAME TO {table}_gone")
        for answer in (http.get("/health"), http.get("/v1/jobs/" + str(uuid4()))):
            assert answer.status_code == 503
            assert "penstock init" in answer.json()["detail"]
