"""A job may put anything in its folder. Nothing outside it is read or changed, and the job is supervised as usual."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deploy.dev.service import ThrowawayService
from orchestrator.client import Client
from tests.integration.team import ADMIN, shared_root, team_service
from tests.jobfolder.outside import Outside
from tests.jobs import ended, python_job, until

# The first attempt plants an entry and kills its own agent. The second one succeeds.
_JOB = """
import json, os, pathlib, signal, time
job, outside = pathlib.Path(os.environ["ORCHESTRATOR_JOB_DIR"]), pathlib.Path({outside!r})
if os.environ["ORCHESTRATOR_ATTEMPT"] == "1":
    agent = json.loads((job / "attempts/1/replica-0/1/agent.json").read_text())["process"]["pid"]
    second = job / "attempts/2"
    {plant}
    os.kill(agent, signal.SIGKILL)
    time.sleep(600)
print("the second attempt")
"""

PLANTS = {
    "its next attempt is a link": "second.symlink_to(outside)",
    "its next attempt is a file": "second.write_text('x')",
    "its attempts are a link": "(job / 'attempts').rename(job / 'old'); (job / 'attempts').symlink_to(outside)",
    "its fence is a link": "(job / 'fence').rename(job / 'old'); (job / 'fence').symlink_to(outside)",
    "its fence is a file": "(job / 'fence').rename(job / 'old'); (job / 'fence').write_text('x')",
    "the next agent's log is a link": (
        "(second / 'replica-0').mkdir(parents=True);(second / 'replica-0/agent.log').symlink_to(outside / 'precious')"
    ),
    "the next agent's log is a hard link": (
        "(second / 'replica-0').mkdir(parents=True);(second / 'replica-0/agent.log').hardlink_to(outside / 'precious')"
    ),
    "the next agent's log is a pipe": (
        "(second / 'replica-0').mkdir(parents=True); os.mkfifo(second / 'replica-0/agent.log')"
    ),
    "the next replica is a link": "second.mkdir(); (second / 'replica-0').symlink_to(outside)",
    "its documents are folders": "[(second / n).mkdir(parents=True) for n in ('launch.json', 'desired.json')]",
    "its documents are links": (
        "second.mkdir(); [(second / n).symlink_to(outside / 'precious') for n in ('launch.json', 'desired.json')]"
    ),
    "its launch names a million replicas": (
        "(job / 'attempts/1/launch.json').write_text(json.dumps({'version': 1, 'replicas': 100_000}))"
    ),
}


@pytest.fixture
def outside(tmp_path: Path) -> Outside:
    return Outside(tmp_path / "outside")


@pytest.mark.long
@pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS)
def test_a_planted_entry_gives_no_access_and_the_next_attempt_runs(
    service: ThrowawayService, client: Client, outside: Outside, plant: str
) -> None:
    code = _JOB.format(outside=str(outside.folder), plant=plant)
    job = until(client, client.submit(python_job(code)).id, ended)
    assert (job.state, job.attempts) == ("SUCCEEDED", 2), job.reason
    assert "the second attempt" in client.logs(job.id)
    outside.require_untouched()


@pytest.mark.long
def test_a_claim_that_is_withdrawn_is_not_written_through_a_planted_link(
    service: ThrowawayService, client: Client, outside: Outside
) -> None:
    """The link has a temporary name that was once predictable from the service's pid."""
    plant = (
        f"second.mkdir(); (second / '.claim.{service.pid}.tmp').symlink_to(outside / 'precious');"
        "(second / 'replica-0').write_text('no folder can be made here')"
    )
    job = client.submit(python_job(_JOB.format(outside=str(outside.folder), plant=plant))).id
    until(client, job, lambda seen: seen.attempts == 2)
    client.cancel(job)
    until(client, job, ended)
    outside.require_untouched()


@pytest.mark.long
def test_an_invalid_pin_is_written_again(tmp_path: Path, outside: Outside) -> None:
    """The pin is a file in the job's folder that names the job's copy of its workdir."""
    code = tmp_path / "code"
    code.mkdir()
    plant = """(job / 'workdir-0.json').write_text('{"x": 1}')"""
    (code / "train.py").write_text(_JOB.format(outside=str(outside.folder), plant=plant))
    spec = {"name": "small", "cluster": "team", "run": {"script": "train.py", "workdir": str(code)}}
    with (
        team_service(tmp_path, "kubernetes", workdirs=code) as service,
        Client(service.url, token=ADMIN) as client,
    ):
        job = until(client, client.submit({**spec, "supervise": {"backoff_s": [0.1, 0.2]}}).id, ended)
        assert (job.state, job.attempts) == ("SUCCEEDED", 2), job.reason
    noted = json.loads((shared_root(tmp_path, "kubernetes") / job.id / "workdir-0.json").read_text())
    assert list(noted) == ["folder"]
