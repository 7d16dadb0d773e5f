"""Slurm with accounting: slurmdbd knows forgotten jobs and enforces limits.

Skipped if slurmdbd and MariaDB are not installed.
"""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.dev.slurm.accounting import ACCOUNT
from deploy.dev.slurm.cluster import NoSlurm, ThrowawaySlurm
from deploy.dev.slurm.conf import Shape
from tests.contract.backend_contract import BackendContract
from tests.contract.backends import BackendWorld
from tests.slurm.live.lab import BY_REST, Lab, open_labs, slurm_world, soon
from tests.slurm.live.test_doctor import examine

pytestmark = pytest.mark.timeout(1200)

# The controller forgets jobs two seconds after their end, but checks only once a minute.
FORGETFUL = Shape(nodes=3, accounting=True, changes={"MinJobAge": "2"})


@pytest.fixture(scope="module")
def keeping() -> Iterator[ThrowawaySlurm]:
    try:
        with ThrowawaySlurm(FORGETFUL) as running:
            yield running
    except NoSlurm as error:
        pytest.skip(str(error))


@pytest.fixture
def open_lab(keeping: ThrowawaySlurm, tmp_path: Path) -> Iterator[Callable[..., Lab]]:
    with open_labs(keeping, tmp_path) as build:
        yield build
        change(keeping, "user", "root", "MaxJobs=-1", "MaxSubmitJobs=-1")


@pytest.fixture
def lab(open_lab: Callable[..., Lab]) -> Lab:
    return open_lab()


class TestSlurmWithAccounting(BackendContract):
    @pytest.fixture
    def world(self, keeping: ThrowawaySlurm, tmp_path: Path) -> Iterator[BackendWorld]:
        with slurm_world(keeping, tmp_path) as world:
            yield world


def change(slurm: ThrowawaySlurm, kind: str, name: str, *limits: str) -> None:
    slurm.run("sacctmgr", "-i", "-Q", "modify", kind, name, "set", *limits)


def sleeper(**fields: Any) -> dict[str, Any]:
    """Build a one-node job that ends on its own."""
    run = {"command": [sys.executable, "-c", "import time; time.sleep(8)"], "workdir": str(Path(__file__).parent)}
    return {"run": run, "topology": {"nodes": "1"}, **fields}


def test_accounting_explains_a_job_that_the_controller_has_forgotten(lab: Lab) -> None:
    """All nodes of the job die while the service is down."""
    job = lab.submit(trainer={"steps": 150})
    lab.at_step(job, 25)
    first = lab.slurm_id(job)
    lab.service.kill()
    lab.slurm.kill_node("n1")
    lab.slurm.kill_node("n2")
    soon(lambda: not lab.slurm_jobs(job), "Slurm does not forget the job")
    assert lab.slurm.run("sacct", "-n", "-X", "-P", "-j", first, "-o", "State").strip() == "NODE_FAIL"
    for node in ("n1", "n2"):
        lab.slurm.start_node(node)
    lab.slurm.await_idle()
    lab.service.start()
    done = lab.succeeded(job)
    attempts = list(lab.client.attempts(job))
    assert (done.attempts, attempts[0].state) == (2, "LOST"), lab.sentences(job)
    assert f"Slurm lost one of its nodes (Slurm job {first}, NODE_FAIL)" in attempts[0].reason
    assert "restored" in lab.kinds(job)


def test_a_cancellation_names_the_user_and_the_administrator_s_comment(lab: Lab) -> None:
    job = lab.submit(trainer={"steps": 150})
    lab.at_step(job, 25)
    number = lab.slurm_id(job)
    lab.slurm.run("scontrol", "update", f"jobid={number}", "admincomment=power work")
    lab.slurm.run("scancel", number)
    done = lab.succeeded(job)
    attempts = list(lab.client.attempts(job))
    assert (done.attempts, attempts[0].state) == (2, "PREEMPTED"), lab.sentences(job)
    me = pwd.getpwuid(os.getuid()).pw_name
    words = (
        f"it was cancelled in Slurm by {me}, the user that the service runs as; the administrator's comment: power work"
    )
    assert words in attempts[0].reason
    remedy = lab.client.why(job).remedy
    assert remedy is not None
    assert remedy.name == "cancelled in Slurm"


def test_a_limit_on_running_jobs_is_the_reason_to_wait(lab: Lab) -> None:
    change(lab.slurm, "user", "root", "MaxJobs=1")
    first, second = lab.submit(**sleeper()), lab.submit(**sleeper())
    seen = lab.until(second, lambda job: "AssocMaxJobsLimit" in job.reason or job.ended)
    assert "AssocMaxJobsLimit (its account allows its user no more running jobs)" in seen.reason
    assert [lab.succeeded(each).attempts for each in (first, second)] == [1, 1]


def test_a_limit_on_submitted_jobs_makes_the_job_wait(lab: Lab) -> None:
    change(lab.slurm, "user", "root", "MaxSubmitJobs=1")
    first = lab.submit(**sleeper())
    lab.until(first, lambda job: job.state == "RUNNING" or job.ended)
    second = lab.submit(**sleeper())
    seen = lab.until(second, lambda job: "Slurm accepts no more jobs now" in job.reason or job.ended)
    assert not seen.ended, seen.reason
    assert "Job violates accounting/QOS policy" in seen.reason
    assert [lab.succeeded(each).attempts for each in (first, second)] == [1, 1]
    assert len(lab.slurm_jobs(second)) <= 1


def test_a_limit_of_a_qos_is_the_reason_to_wait(lab: Lab) -> None:
    lab.slurm.run("sacctmgr", "-i", "-Q", "add", "qos", "narrow", "set", "GrpJobs=1")
    change(lab.slurm, "user", "root", "qos+=narrow")
    place = {"qos": "narrow", "account": ACCOUNT}
    first, second = (lab.submit(**sleeper(placement=place)) for _ in range(2))
    seen = lab.until(second, lambda job: "QOSGrpJobsLimit" in job.reason or job.ended)
    assert "QOSGrpJobsLimit (its QOS allows all its jobs together no more running jobs)" in seen.reason
    assert [lab.succeeded(each).attempts for each in (first, second)] == [1, 1]


def test_an_invalid_account_or_qos_is_refused_with_slurm_s_message(lab: Lab) -> None:
    for place, words in (({"account": "nobody"}, "Invalid account"), ({"qos": "gold"}, "Invalid qos")):
        ended = lab.until(lab.submit(**sleeper(placement=place)), lambda job: job.ended)
        assert ended.failure is not None
        assert (ended.failure.kind, words in ended.reason) == ("launch", True), ended.reason


def test_a_job_survives_the_loss_of_slurmdbd(lab: Lab) -> None:
    """The controller continues without slurmdbd."""
    job = lab.submit(trainer={"steps": 100})
    lab.at_step(job, 10)
    lab.slurm.kill_slurmdbd()
    try:
        assert lab.succeeded(job).attempts == 1
        assert lab.succeeded(lab.submit(**sleeper())).attempts == 1
    finally:
        lab.slurm.start_slurmdbd()


def test_doctor_reports_accounting(keeping: ThrowawaySlurm, tmp_path: Path) -> None:
    _, found = examine(keeping, tmp_path)
    assert found["accounting"] == ("ok", "slurmdbd reports jobs that the controller has forgotten")


@pytest.mark.skipif(not BY_REST, reason="the commands know only whether accounting is configured")
def test_doctor_warns_of_a_slurmdbd_that_does_not_answer(keeping: ThrowawaySlurm, tmp_path: Path) -> None:
    keeping.kill_slurmdbd()
    try:
        _, found = examine(keeping, tmp_path)
    finally:
        keeping.start_slurmdbd()
    verdict, words = found["accounting"]
    assert verdict == "warning"
    assert words.startswith("accounting does not answer: Unable to connect to database")
