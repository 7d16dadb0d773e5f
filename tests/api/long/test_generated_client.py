"""A client that openapi-python-client generates from the OpenAPI document works."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import httpx
import pytest

from deploy.dev.service import ThrowawayService
from tests.api.tools import CLIENT_GENERATOR, NoTool, install_tool

pytestmark = pytest.mark.timeout(600)

_BUILD_S = 300
# Submits a job that sleeps, reads it, gets errors for invalid requests, and cancels the job.
_USE = """
import json, sys
from http import HTTPStatus

from made import AuthenticatedClient, Client
from made.api.clusters import list_clusters
from made.api.jobs import list_jobs, show_job, submit_job
from made.api.logs import read_logs
from made.api.service import show_health
from made.api.tokens import create_token
from made.api.wishes import cancel_job, scale_job
from made.models import JobSpec, JobView, Problem, ScaleRequest, SubmittedView, TokenRequest

url, admin = sys.argv[1:]
assert show_health.sync(client=Client(base_url=url)).status == "ok"
first = AuthenticatedClient(base_url=url, token=admin)
made = create_token.sync(client=first, body=TokenRequest.from_dict({"name": "made", "grants": {"*": "operator"}}))
client = AuthenticatedClient(base_url=url, token=made.token)
spec = JobSpec.from_dict({"name": "made", "run": {"command": ["sleep", "600"], "workdir": "/"}})
job = submit_job.sync(client=client, body=spec, idempotency_key="once")
assert isinstance(job, SubmittedView), job
again = submit_job.sync_detailed(client=client, body=spec, idempotency_key="once")
assert (again.status_code, again.parsed.id) == (HTTPStatus.OK, job.id)
assert show_job.sync(job.id, client=client).name == "made"
assert [each.id for each in list_jobs.sync(client=client, q="made").items] == [job.id]
assert "local" in [each.name for each in list_clusters.sync(client=client).items]
assert read_logs.sync_detailed(job.id, client=client).status_code == HTTPStatus.OK
missing = show_job.sync("no-such-job", client=client)
assert isinstance(missing, Problem) and missing.status == 404, missing
wrong = scale_job.sync(job.id, client=client, body=ScaleRequest.from_dict({"nodes": "none"}))
assert isinstance(wrong, Problem) and wrong.errors[0].pointer == "/nodes", wrong
assert isinstance(cancel_job.sync(job.id, client=client), JobView)
refused = list_jobs.sync(client=AuthenticatedClient(base_url=url, token="nobody's"))
assert isinstance(refused, Problem) and refused.status == 401, refused
print(json.dumps({"id": job.id}))
"""


@pytest.fixture(scope="module")
def programs() -> Path:
    """Skips where there is no package index, fails in CI."""
    try:
        return install_tool(CLIENT_GENERATOR)
    except NoTool as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        pytest.skip(str(error))


def test_a_generated_client_has_every_operation_and_works(programs: Path, tmp_path: Path) -> None:
    admin = "the first admin's token"
    with ThrowawayService(tmp_path / "runs", {"ORCHESTRATOR_TOKEN": admin, "ORCHESTRATOR_POLL_S": "0.1"}) as service:
        document = httpx.get(f"{service.url}/openapi.json").raise_for_status().json()
        (tmp_path / "openapi.json").write_text(json.dumps(document))
        generate = ("generate", "--path", "openapi.json", "--meta", "none", "--output-path", "made")
        generated = run([str(programs / "openapi-python-client"), *generate], tmp_path)
        assert generated.returncode == 0, generated.stdout + generated.stderr
        names = {each["operationId"] for methods in document["paths"].values() for each in methods.values()}
        modules = {file.stem for file in (tmp_path / "made" / "api").glob("*/*.py")}
        assert names <= modules, f"left out, because: {generated.stdout}{generated.stderr}"
        used = run([str(programs / "python"), "-c", _USE, service.url, admin], tmp_path)
        assert used.returncode == 0, used.stderr
        assert json.loads(used.stdout)["id"].startswith("made-")


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(command, cwd=folder, env=kept, capture_output=True, text=True, timeout=_BUILD_S, check=False)
