"""`penstock jobs`: submit, list, show, cancel, wait and serve."""

import json
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from penstock.jobs import Jobs, JobsClient
from penstock.store.sql.store import SqlStore

SOON = 30.0

Run = Callable[..., Any]
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def jobs(store: SqlStore) -> Jobs:
    return Jobs(store)


def test_submitted_job_can_be_shown(penstock: Run, jobs: Jobs) -> None:
    ran = penstock("jobs", "submit", "email:send", '{"to": "ada"}', "--priority", "3", "--max-attempts", "5")
    job = jobs.get(ran.out.strip())
    assert (ran.code, job.payload, job.priority, job.max_attempts) == (0, {"to": "ada"}, 3, 5)
    shown = penstock("jobs", "show", str(job.job_id), "--json").json
    assert (shown["state"], shown["payload"]) == ("PENDING", {"to": "ada"})
    assert '{"to": "ada"}' in penstock("jobs", "show", str(job.job_id)).out


def test_submit_applies_name_delay_and_dedupe_key(penstock: Run, store: SqlStore) -> None:
    arguments = ("jobs", "submit", "a", "--name", "nightly", "--delay", "10m", "--dedupe-key", "k", "--json")
    first, second = penstock(*arguments).json, penstock(*arguments).json
    assert first == second
    job = Jobs(store, "nightly").get(first["job_id"])
    assert (job.available_at - job.submitted_at).total_seconds() == 600


def test_list_and_stats_print_jobs(penstock: Run, jobs: Jobs) -> None:
    ids = [str(jobs.submit(kind)) for kind in ("a", "a", "b\x1b")]
    jobs.cancel(ids[0], "called off")
    assert [job["job_id"] for job in penstock("jobs", "list", "--json").json] == ids[::-1]
    listed = penstock("jobs", "list", "--state", "dead", "--type", "a").out
    assert "called off" in listed
    assert ids[1] not in listed
    assert "b\\u001b" in penstock("jobs", "list").out
    assert "more results: use --after" in penstock("jobs", "list", "--limit", "2").err
    assert penstock("jobs", "list", "--state", "claimed").err == "no jobs match\n"
    assert penstock("jobs", "stats", "--json").json == jobs.stats().as_json()
    assert "b\\u001b" in penstock("jobs", "stats").out


def test_cancel_by_id_records_reason(penstock: Run, jobs: Jobs) -> None:
    job_id = str(jobs.submit("a"))
    assert penstock("jobs", "cancel", job_id, "--dry-run").out == "would cancel 1 job\n"
    assert jobs.get(job_id).state == "PENDING"
    assert penstock("jobs", "cancel", job_id, "--reason", "enough").out == "1 job cancelled\n"
    assert jobs.get(job_id).error == "enough"
    again = penstock("jobs", "cancel", job_id)
    assert (again.code, "already DEAD" in again.err) == (1, True)


def test_cancel_by_type_asks_for_confirmation(penstock: Run, jobs: Jobs) -> None:
    for kind in ("a", "a", "b"):
        jobs.submit(kind)
    assert penstock("jobs", "cancel", "--type", "a", "--dry-run", "--json").json == {"dry_run": True, "total": 2}
    asked = penstock("jobs", "cancel", "--type", "a", stdin=b"n\n")
    assert (asked.code, "cancel 2 jobs?" in asked.err) == (1, True)
    assert jobs.stats().types[0].pending == 2
    assert penstock("jobs", "cancel", "--type", "a", "--yes", "--json").json == {"cancelled": 2}
    assert [(one.pending, one.dead) for one in jobs.stats().types] == [(0, 2), (1, 0)]


def test_wait_prints_result_or_error(penstock: Run, jobs: Jobs) -> None:
    done, dead, open_ = (str(jobs.submit(kind)) for kind in "abc")
    job = jobs.claim("worker", ["a"])
    assert job is not None
    jobs.complete(job, {"sent": 1})
    jobs.cancel(dead, "called off")
    assert penstock("jobs", "wait", done, "--json").json["result"] == {"sent": 1}
    assert '{"sent": 1}' in penstock("jobs", "wait", done).out
    assert penstock("jobs", "wait", dead).err == f"error: job {dead} is dead: called off\n"
    late = penstock("jobs", "wait", open_, "--timeout", "0")
    assert (late.code, "still PENDING" in late.err) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["submit", "a", "text"], "not JSON"),
        (["submit", "", "1"], "invalid job type ''; expected 1 to"),
        (["submit", "a", "--delay", "soon"], "invalid duration 'soon'"),
        (["show", "12"], "invalid job id '12'"),
        (["show", "0197a3c2-7b1e-7c3d-9f00-5a2b8c4d6e1f"], "does not exist in job queue 'jobs'"),
        (["cancel"], "requires either job ids or --type"),
        (["cancel", "x", "--type", "a"], "requires either job ids or --type"),
        (["list", "--name", "a/b"], "without '/'"),
        (["serve", "--host", "0.0.0.0"], "missing token"),
        (["serve", "--token", "two words"], "invalid token"),
        (["serve", "--heartbeat-seconds", "40"], "less than timeout_seconds"),
    ],
)
def test_invalid_arguments_are_usage_errors(penstock: Run, store: SqlStore, arguments: list[str], message: str) -> None:
    ran = penstock("jobs", *arguments)
    assert (ran.code, ran.out, len(ran.err.splitlines())) == (2, "", 1)
    assert message in ran.err


def test_missing_subcommand_shows_help(penstock: Run) -> None:
    ran = penstock("jobs")
    assert (ran.code, "submit" in ran.out) == (2, True)


class TestServing:
    def serve(self, process: Start, *arguments: str, **settings: object) -> tuple["subprocess.Popen[bytes]", str]:
        started = process("jobs", "serve", "--port", "0", *arguments, **settings)
        assert started.stdout is not None
        line = started.stdout.readline().decode()
        assert line.startswith("serving jobs at http://127.0.0.1:"), started.communicate()
        return started, line.split()[-1]

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_signal_stops_server_gracefully(self, process: Start, store: SqlStore, number: signal.Signals) -> None:
        started, url = self.serve(process)
        with JobsClient(url) as client:
            job_id = client.submit("a")
            started.send_signal(number)
            out, err = started.communicate(timeout=SOON)
        assert (started.returncode, out, err) == (0, b"", b"")
        assert Jobs(store).get(job_id).state == "PENDING"
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/health")

    def test_tokens_come_from_option_and_environment(
        self, process: Start, store: SqlStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PENSTOCK_JOBS_TOKEN", "one")
        monkeypatch.setenv("PENSTOCK_JOBS_TOKENS", "two, three")
        _, url = self.serve(process, "--token", "four", "--timeout-seconds", "60")
        for token, status in (("one", 200), ("two", 200), ("three", 200), ("four", 200), ("five", 401)):
            answer = httpx.get(f"{url}/v1/stats", headers={"Authorization": f"Bearer {token}"})
            assert answer.status_code == status
        httpx.post(f"{url}/v1/jobs", json={"type": "a"}, headers={"Authorization": "Bearer one"})
        body = {"worker_id": "w"}
        job = httpx.post(f"{url}/v1/jobs/claim", json=body, headers={"Authorization": "Bearer one"}).json()
        assert job["timeout_seconds"] == 60

    def test_port_in_use_is_named_in_error(self, process: Start, store: SqlStore) -> None:
        _, url = self.serve(process)
        second = process("jobs", "serve", "--port", str(httpx.URL(url).port))
        _, err = second.communicate(timeout=SOON)
        assert (second.returncode, err.startswith(b"error: cannot listen on 127.0.0.1 port")) == (1, True)

    def test_store_without_tables_names_init_command(self, process: Start) -> None:
        started = process("jobs", "serve", "--port", "0", "--store", "sqlite:///none.db")
        _, err = started.communicate(timeout=SOON)
        assert started.returncode == 1
        assert b"penstock init" in err


def test_schema_is_served_without_token(process: Start, store: SqlStore) -> None:
    _, url = TestServing().serve(process, "--token", "secret")
    paths = json.loads(httpx.get(f"{url}/openapi.json").content)["paths"]
    assert "/v1/jobs/claim" in paths
