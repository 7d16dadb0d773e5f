"""How much more CPU time a pass over many jobs takes if one of them is hostile."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.control_plane.passes import CLUSTER, SteadyCluster, build_reconciler, write_incarnation
from benchmarks.control_plane.stored import WORKERS, add_running, copy, make_job, make_spec, settle
from orchestrator.backends.kubernetes.attempt_folder import read_traces as read_on_kubernetes
from orchestrator.backends.local.backend import LocalBackend
from orchestrator.backends.slurm.attempt_folder import look_closely
from orchestrator.backends.slurm.attempt_folder import read_traces as read_on_slurm
from orchestrator.backends.traces import last_sign
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.job.job import JobState
from orchestrator.jobfolder.folder import JobFolder
from orchestrator.store.engine import Database
from orchestrator.store.upgrade import upgrade
from orchestrator.supervisor.reconcile import Reconciler
from tests.builders import NOW

pytestmark = pytest.mark.timeout(600)

JOBS, PASSES = 100, 7
MANY = 200_000  # in each of five folders


class Cluster(SteadyCluster):
    """Every job runs. Its folder is read as all three backends do."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self._root = root

    def observe(self, launched):  # type: ignore[no-untyped-def]  # a Backend's
        here = LocalBackend(self._root, slots=1)
        for key, replicas in launched.items():
            job = JobFolder(self._root, key.job_id)
            look_closely(read_on_slurm(job, key, replicas), job, key, 7)
            last_sign(job, key, replicas)
            read_on_kubernetes(job, key, replicas)
            here._build_sighting(key, replicas, search=False)
        return super().observe(launched)


@pytest.fixture
def reconciler(tmp_path: Path) -> Iterator[Reconciler]:
    url = f"sqlite:///{tmp_path / 'orchestrator.db'}"
    upgrade(url)
    spec = make_spec(cluster=CLUSTER, topology={"workers_per_node": WORKERS})
    with Database(url) as database:
        add_running(database, make_job("template", spec, JobState.RUNNING, NOW), steps=0)
        ids = ["template", *copy(database, "template", range(JOBS - 1))]
        settle(database)
        for job_id in ids:
            write_incarnation(tmp_path / "runs", AttemptKey(job_id, 1))
        yield build_reconciler(database, tmp_path / "runs", Cluster(tmp_path / "runs"))


def cost(reconciler: Reconciler) -> float:
    """The CPU seconds of the fastest of some passes, which does not depend on other load."""
    costs = []
    for _ in range(PASSES):
        began = time.process_time()
        reconciler.reconcile()
        costs.append(time.process_time() - began)
    return min(costs)


def test_a_million_entries_and_endless_files_do_not_double_the_cost_of_a_pass(
    tmp_path: Path, reconciler: Reconciler
) -> None:
    for _ in range(3):
        reconciler.reconcile()
    before = cost(reconciler)
    attempt = tmp_path / "runs/template/attempts/1"
    life = attempt / "replica-0/1"
    for folder in (attempt, attempt.parents[1], life.parent, life, life / "g1"):
        folder.mkdir(exist_ok=True)
        for number in range(MANY):
            os.mknod(folder / f"claim-{number}")
    for number in range(20_000):
        (attempt / f"replica-{number}/1").mkdir(parents=True, exist_ok=True)
        (attempt / f"replica-0/{number}").mkdir(exist_ok=True)
        (attempt / f"allocation-{number}").write_text("1 n[1-99999]")
        (attempt / f"departed-{number}.json").write_text("{}")
    for name in ("events.jsonl", "exit.json", "agent.json"):
        with (attempt / "replica-0/19999" / name).open("wb") as file:
            file.truncate(1 << 40)
    costs = [cost(reconciler) for _ in range(3)]
    print(f"a pass over {JOBS} jobs: {before:.3f} s of CPU, with a hostile one among them {costs}")
    assert max(costs) < 2 * before
