"""A Slurm that keeps books: slurmdbd tells of what the controller has forgotten, and enforces limits.

Skipped where slurmdbd and MariaDB are not installed.
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
from tests.slurm.live.lab import Lab, open_labs, slurm_world, soon
from tests.slurm.live.test_doctor import examine

pytestmark = pytest.mark.timeout(1200)

# The controller forgets a job two seconds after its end; it looks once a minute.
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


class TestSlurmWithBooks(BackendContract):
    @pytest.fixture
    def world(self, keeping: ThrowawaySlurm, tmp_path: Path) -> Iterator[BackendWorld]:
        with slurm_world(keeping, tmp_path) as world:
            yield world


def change(slurm: ThrowawaySlurm, kind: str, name: str, *limits: str) -> None:
    slurm.run("sacctmgr", "-i", "-Q", "modify", kind, name, "set", *limits)


def sleeper(**fields: Any) -> dict[str, Any]:
    """A job of one node that ends by itself."""
    run = {"command": [sys.executable, "-c", "import time; time.sleep(8)"], "workdir": str(Path(__file__).parent)}
    return {"run": run, "topology": {"nodes": "1"}, **fields}


def test_what_the_controller_has_forgotten_is_looked_up_in_the_books(lab: Lab) -> None:
    """The first node dies with everything that could have told of it, and nobody is there to see it."""
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


def test_who_cancelled_a_job_is_told_by_its_user(lab: Lab) -> None:
    job = lab.submit(trainer={"steps": 150})
    lab.at_step(job, 25)
    number = lab.slurm_id(job)
    lab.slurm.run("scontrol", "update", f"jobid={number}", "admincomment=power work")
    lab.slurm.run("scancel", number)
    done = lab.succeeded(job)
    attempts = list(lab.client.attempts(job))
    assert (done.attempts, attempts[0].state) == (2, "PREEMPTED"), lab.sentences(job)
    me = pwd.getpwuid(os.getuid()).pw_name
    said = (
        f"it was cancelled in Slurm by {me}, the user that the service runs as; the administrator's comment: power work"
    )
    assert said in attempts[0].reason
    remedy = lab.client.why(job).remedy
    assert remedy is not None
    assert remedy.name == "cancelled in Slurm"


def test_a_limit_on_jobs_that_run_is_waited_for_with_its_words(lab: Lab) -> None:
    change(lab.slurm, "user", "root", "MaxJobs=1")
    first, second = lab.submit(**sleeper()), lab.submit(**sleeper())
    seen = lab.until(second, lambda job: "AssocMaxJobsLimit" in job.reason or job.ended)
    assert "AssocMaxJobsLimit (its account reached a limit)" in seen.reason
    assert [lab.succeeded(each).attempts for each in (first, second)] == [1, 1]


def test_a_limit_on_jobs_that_are_submitted_is_waited_for_and_fails_nobody(lab: Lab) -> None:
    change(lab.slurm, "user", "root", "MaxSubmitJobs=1")
    first = lab.submit(**sleeper())
    lab.until(first, lambda job: job.state == "RUNNING" or job.ended)
    second = lab.submit(**sleeper())
    seen = lab.until(second, lambda job: "Slurm accepts no more jobs now" in job.reason or job.ended)
    assert not seen.ended, seen.reason
    assert "Job violates accounting/QOS policy" in seen.reason
    assert [lab.succeeded(each).attempts for each in (first, second)] == [1, 1]
    assert len(lab.slurm_jobs(second)) <= 1


def test_a_limit_of_a_qos_is_waited_for_with_its_words(lab: Lab) -> None:
    lab.slurm.run("sacctmgr", "-i", "-Q", "add", "qos", "narrow", "set", "GrpJobs=1")
    change(lab.slurm, "user", "root", "qos+=narrow")
    place = {"qos": "narrow", "account": ACCOUNT}
    first, second = (lab.submit(**sleeper(placement=place)) for _ in range(2))
    seen = lab.until(second, lambda job: "QOSGrpJobsLimit" in job.reason or job.ended)
    assert "QOSGrpJobsLimit (its QOS reached a limit)" in seen.reason
    assert [lab.succeeded(each).attempts for each in (first, second)] == [1, 1]


def test_an_account_and_a_qos_that_are_not_ours_are_refused_in_slurms_words(lab: Lab) -> None:
    for place, words in (({"account": "nobody"}, "Invalid account"), ({"qos": "gold"}, "Invalid qos")):
        ended = lab.until(lab.submit(**sleeper(placement=place)), lambda job: job.ended)
        assert ended.failure is not None
        assert (ended.failure.kind, words in ended.reason) == ("launch", True), ended.reason


def test_books_that_are_closed_cost_a_job_nothing(lab: Lab) -> None:
    """slurmdbd is down: the controller goes on without it, and so do we."""
    job = lab.submit(trainer={"steps": 100})
    lab.at_step(job, 10)
    lab.slurm.stop_slurmdbd()
    try:
        assert lab.succeeded(job).attempts == 1
        assert lab.succeeded(lab.submit(**sleeper())).attempts == 1
    finally:
        lab.slurm.start_slurmdbd()


def test_doctor_tells_that_there_are_books(keeping: ThrowawaySlurm, tmp_path: Path) -> None:
    _, found = examine(keeping, tmp_path)
    assert found["accounting"] == ("ok", "sacct reports jobs that the controller has forgotten")
