"""slurmrestd instead of Slurm's commands. Skipped if it is older than 24.11."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from deploy.dev.slurm.cluster import NoSlurm, ThrowawaySlurm
from orchestrator.backends.slurm.hostlist import parse_hostlist
from orchestrator.backends.slurm.listing import SlurmJob
from orchestrator.backends.slurm.rest import SlurmRest
from orchestrator.domain.errors import BackendUnavailable
from tests.contract.backend_contract import BackendContract
from tests.contract.backends import BackendWorld
from tests.slurm.live.lab import by_rest, commands, empty_queue, rest, slurm_world, soon
from tests.slurm.live.test_doctor import examine


@pytest.fixture(autouse=True, scope="module")
def slurmrestd(slurm: ThrowawaySlurm) -> None:
    try:
        slurm.start_rest()
    except NoSlurm as error:
        pytest.skip(str(error))


RESERVED = ("users=root", "starttime=now", "duration=60", "flags=maint,ignore_jobs")


def eventually(holds: Callable[[], bool], what: str | Callable[[], str]) -> None:
    """Wait until it holds. While it ends the jobs of a node, the controller of 24.11 does not answer for seconds."""

    def answers_and_holds() -> bool:
        with suppress(BackendUnavailable):
            return holds()
        return False

    soon(answers_and_holds, what, timeout_s=60)


class TestSlurmByRest(BackendContract):
    @pytest.fixture
    def world(self, slurm: ThrowawaySlurm, tmp_path: Path) -> Iterator[BackendWorld]:
        with slurm_world(slurm, tmp_path, through_rest=True) as world:
            yield world


def test_both_clients_list_the_same_jobs_and_nodes(slurm: ThrowawaySlurm) -> None:
    def submit(name: str, command: str, *options: str) -> str:
        given = [f"--job-name={name}-a1", "-o/dev/null", *options, f"--wrap={command}"]
        return slurm.run("sbatch", "--parsable", *given).strip()

    def compare(client: SlurmRest) -> str:
        other = commands(slurm)
        seen, expected = {*client.jobs(), *client.nodes()}, {*other.jobs(), *other.nodes()}
        return f"slurmrestd alone: {seen - expected}\nthe commands alone: {expected - seen}" if seen != expected else ""

    def job_of(client: SlurmRest, number: str) -> SlurmJob:
        return next(job for job in client.jobs() if job.id == int(number))

    running = submit("runs", "sleep 600", "-N2", "--ntasks-per-node=1", "--comment=a: b|c", "--time=90")
    submit("exit3", "exit 3")
    submit("killed", "kill -9 $$")
    submit("held", "sleep 600", "--hold")
    submit("after", "sleep 600", f"--dependency=afterok:{running}")
    submit("never", "sleep 600", "--begin=now+1days", "--requeue")
    cancelled = submit("cancelled", "trap '' TERM; sleep 600 & wait; wait")
    requeued = submit("requeued", "sleep 600", "--requeue")
    down, drained = slurm.shape.names[2:]
    with rest(slurm) as client:
        try:
            eventually(lambda: job_of(client, cancelled).state == "RUNNING", "the job to cancel does not run")
            submit("large", "sleep 600", "-N4", "-c4", "--exclusive")  # not before: later ones would wait for it
            slurm.run("scancel", cancelled)
            slurm.run("scontrol", "requeue", requeued)
            slurm.run("scontrol", "update", f"nodename={drained}", "state=drain", "reason=a | b")
            slurm.run("scontrol", "update", f"nodename={down}", "state=down", "reason=broken")
            eventually(lambda: not compare(client), lambda: compare(client))
            eventually(lambda: job_of(client, cancelled).state == "CANCELLED", "the cancelled job does not end")
            eventually(lambda: not compare(client), lambda: compare(client))
            states = {job.name: job.state for job in client.jobs()}
        finally:
            for node in (drained, down):
                slurm.run("scontrol", "update", f"nodename={node}", "state=resume", check=False)
            empty_queue(slurm)
    assert len(states) >= 9


def test_both_clients_see_the_same_nodes_in_a_reservation(slurm: ThrowawaySlurm) -> None:
    drained, down = slurm.shape.names[2:]
    slurm.run("sbatch", "-o/dev/null", "-N2", "--wrap=sleep 600")
    with rest(slurm) as client:
        try:
            eventually(lambda: any(node.state == "mixed" for node in client.nodes()), "no job runs")
            slurm.run("scontrol", "update", f"nodename={drained}", "state=drain", "reason=a | b")
            slurm.run("scontrol", "update", f"nodename={down}", "state=down", "reason=broken")
            slurm.run("scontrol", "create", "reservation=r", f"nodes={','.join(slurm.shape.names)}", *RESERVED)
            eventually(lambda: {*client.nodes()} == {*commands(slurm).nodes()}, "the clients list different nodes")
        finally:
            slurm.run("scontrol", "delete", "reservation=r", check=False)
            for node in (drained, down):
                slurm.run("scontrol", "update", f"nodename={node}", "state=resume", check=False)
            empty_queue(slurm)


@pytest.mark.parametrize("nodes", ["n3", "n[1-2]", ""])
def test_the_excluded_nodes_of_a_waiting_job_are_replaced(slurm: ThrowawaySlurm, nodes: str) -> None:
    job = slurm.run("sbatch", "--parsable", "--hold", "--exclude=n1", "-o/dev/null", "--wrap=true").strip()
    with rest(slurm) as client:

        def exclude() -> bool:
            client.exclude(int(job), nodes)
            return True

        eventually(exclude, "the controller does not answer")
    shown = slurm.run("scontrol", "show", "job", job)
    empty_queue(slurm)
    excluded = shown.partition("ExcNodeList=")[2].split()[0].replace("(null)", "")
    assert {*parse_hostlist(excluded)} == {*parse_hostlist(nodes)}


def test_the_doctor_checks_the_cluster(slurm: ThrowawaySlurm, tmp_path: Path) -> None:
    status, found = examine(slurm, tmp_path, **by_rest(slurm))
    assert status == 0, found
    assert found["version"][1].startswith("Slurm 2")
    assert found["shared"][0] == found["torch"][0] == found["clock"][0] == found["delay"][0] == "ok"
    assert found["group"][1].startswith("two workers formed a group on n")
    status, found = examine(slurm, tmp_path, **by_rest(slurm, partition="nowhere"))
    assert (status, found["compute node"][0]) == (2, "failed")
    assert "Invalid partition name" in found["compute node"][1]
    status, found = examine(slurm, tmp_path, **by_rest(slurm) | {"rest_url": "unix:/tmp/none/rest"})
    assert (status, list(found)) == (2, ["controller"])
