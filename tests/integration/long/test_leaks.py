"""No secret of a service is in an answer, a page, the log, the database, the run directory or a process's arguments."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from deploy.dev.service import ThrowawayService, processes_of
from orchestrator.client import Client
from orchestrator.domain.access.identity import Role
from tests.conftest import quick_service
from tests.jobs import ended, python_job, running, until

pytestmark = pytest.mark.timeout(300)

PRINTS_AND_FAILS = (
    "import os, sys; print('has', os.environ['KEY'], flush=True);"
    "print(os.environ['KEY'], file=sys.stderr, flush=True);"
    "raise ValueError('bad key ' + os.environ['KEY'])"
)
WAITS = "import os, time; assert os.environ['KEY']; print('waits', flush=True); time.sleep(600)"


@dataclass(frozen=True)
class Kept:
    """A service with one secret of each kind. `hidden` has the secrets by name."""

    service: ThrowawayService
    admin: str
    hidden: dict[str, str]
    failed: str  # a job that printed its secret and failed with it in its error
    live: str


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    folder = tmp_path_factory.mktemp("leaks")
    admin, hook, value = (secrets.token_hex(20) for _ in range(3))
    config = folder / "orchestrator.toml"
    config.write_text(
        '[webhooks.audit]\nurl = "http://127.0.0.1:1/hook"\nsecret_env = "ORCHESTRATOR_HOOK_SECRET"\nall_jobs = true\n'
    )
    settings = {
        "ORCHESTRATOR_CONFIG": str(config),
        "ORCHESTRATOR_TOKEN": admin,
        "ORCHESTRATOR_HOOK_SECRET": hook,
        "ORCHESTRATOR_ADVERTISE_URL": "http://127.0.0.1:1",
        "ORCHESTRATOR_LOG_LEVEL": "debug",
    }
    with quick_service(folder / "runs", **settings) as service, Client(service.url, admin) as client:
        person = client.create_token("alice", {"*": Role.OPERATOR}).token
        stored = httpx.post(
            f"{service.url}/api/v1/secrets",
            json={"name": "KEY", "value": value},
            headers={"Authorization": f"Bearer {admin}"},
        )
        assert stored.status_code == 201
        specs = [python_job(code, supervise={"budgets": {"application": 0}}) for code in (PRINTS_AND_FAILS, WAITS)]
        for spec in specs:
            spec["run"]["secrets"] = ["KEY"]
        with Client(service.url, person) as theirs:
            failed, live = (theirs.submit(spec).id for spec in specs)
        assert until(client, failed, ended).state == "FAILED"
        until(client, live, running)
        until(client, live, lambda job: "waits" in client.logs(job.id))
        hidden = {
            "the admin's token": admin,
            "a person's token": person,
            "a webhook's key": hook,
            "a project's secret": value,
            "the service's key": (service.root / "secret.key").read_text().strip(),
            "a worker's token": worker_token(service.root),
        }
        yield Kept(service, admin, hidden, failed, live)


def worker_token(root: Path) -> str:
    """The token in an agent's environment."""
    for process in processes_of(root):
        for pair in Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0"):
            name, _, value = pair.decode(errors="replace").partition("=")
            if name == "ORCHESTRATOR_REPORT_TOKEN":
                return value
    raise AssertionError("no agent has a token")


def leaked(kept: Kept, text: str | bytes, *, but: str = "") -> list[str]:
    plain = text.encode(errors="replace") if isinstance(text, str) else text
    return [what for what, secret in kept.hidden.items() if what != but and secret.encode() in plain]


@pytest.mark.smoke
def test_no_answer_and_no_page_shows_a_secret(kept: Kept) -> None:
    with httpx.Client(base_url=kept.service.url, headers={"Authorization": f"Bearer {kept.admin}"}) as client:
        document = client.get("/openapi.json").json()
        reads = [path for path, operations in document["paths"].items() if "get" in operations and "stream" not in path]
        paths = [
            *reads,
            "/",
            "/clusters",
            "/submit",
            "/jobs/{job_id}",
            "/jobs/{job_id}/launch",
            "/jobs/{job_id}/charts",
        ]
        looked_at = 0
        for path in paths:
            for job_id in (kept.failed, kept.live):
                address = path.replace("{job_id}", job_id)
                if "{" in address or path == "/api/v1/events":
                    continue
                answer = client.get(address, headers={"Accept": "text/html" if "/api/" not in path else "*/*"})
                assert leaked(kept, answer.text) == [], address
                assert leaked(kept, str(answer.headers)) == [], address
                looked_at += answer.status_code == 200
        assert looked_at > 40
        for stream in ("agent", "stacks", "worker"):
            assert leaked(kept, client.get(f"/api/v1/jobs/{kept.failed}/logs", params={"stream": stream}).text) == []
        assert "********" in client.get(f"/api/v1/jobs/{kept.failed}").text, "masked, not missing"


def test_no_error_repeats_a_token(kept: Kept) -> None:
    token = kept.hidden["a person's token"]
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(base_url=kept.service.url) as client:
        answers = [
            client.get(f"/api/v1/jobs?q={token}", headers=headers),
            client.get(f"/api/v1/jobs/{token}", headers=headers),
            client.get("/api/v1/jobs", headers={"Authorization": f"Basic {token}"}),
            client.get("/api/v1/jobs", headers={"Authorization": f"Bearer {token}x"}),
            client.get("/api/v1/jobs", headers={"Cookie": f"orchestrator_session={token}"}),
            client.post("/api/v1/jobs", content=token, headers={**headers, "Content-Type": "application/json"}),
            client.post("/api/v1/reports", json={"job_id": token}, headers=headers),
            client.post("/sign-in", data={"token": f"{token}x"}),
            client.get("/api/v1/jobs", headers={**headers, "X-Request-ID": f"{token} x"}),
        ]
    for answer in answers:
        assert answer.status_code < 500
        assert leaked(kept, f"{answer.text} {answer.headers}") == [], answer.request.url.path


def test_no_process_has_a_secret_among_its_arguments(kept: Kept) -> None:
    pids = [kept.service.pid, *(process.pid for process in processes_of(kept.service.root))]
    assert len(pids) >= 3, "the service, an agent and a worker"
    for pid in pids:
        assert leaked(kept, Path(f"/proc/{pid}/cmdline").read_bytes()) == []


@pytest.mark.smoke
def test_only_the_key_file_and_the_jobs_output_contain_a_secret(kept: Kept) -> None:
    root = kept.service.root
    for path in [*root.rglob("*"), root / "service.log"]:
        if not path.is_file() or path == root / "secret.key":
            continue
        its_own = "attempts" in path.parts and kept.failed in path.parts  # its output and its error
        found = leaked(kept, path.read_bytes(), but="a project's secret" if its_own else "")
        assert found == [], path
    assert (root / "secret.key").stat().st_mode & 0o777 == 0o600


def test_the_services_log_has_no_secret(kept: Kept) -> None:
    printed = kept.service.printed()
    assert '"request"' in printed or "request" in printed
    assert leaked(kept, printed) == []
