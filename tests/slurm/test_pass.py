"""A pass over very many jobs needs one listing, which the controller filters, and few other commands."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.slurm import World
from orchestrator.backends.slurm.backend import SlurmBackend
from orchestrator.backends.slurm.commands import SlurmCommands
from orchestrator.backends.slurm.listing import SEPARATOR
from orchestrator.backends.slurm.site import SlurmSite
from orchestrator.domain.errors import BackendUnavailable
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.observation.observation import Presence
from tests.slurm.crowd import CrowdedSlurm

KEYS = [AttemptKey(f"job-{number}", 1) for number in range(1000)]
FOREIGN = 50_000


class Crowd:
    """A backend with a crowded Slurm."""

    def __init__(self, folder: Path, *, foreign: int = FOREIGN) -> None:
        root = folder / "runs"
        self.slurm = CrowdedSlurm(folder, root, KEYS, foreign=foreign)
        site = SlurmSite(root=root, service_root=root, agent_dir=root, listing_s=0)
        client = SlurmCommands(timeout_s=60, bin_dir=str(self.slurm.bin_dir))
        self.backend = SlurmBackend(site, client, package=root)

    def count(self) -> Counter[Presence]:
        return Counter(each.presence for each in self.backend.observe(dict.fromkeys(KEYS, 1)).values())


@pytest.fixture
def crowd(tmp_path: Path) -> Crowd:
    return Crowd(tmp_path)


def test_a_pass_runs_one_squeue_of_our_jobs(crowd: Crowd) -> None:
    for _ in range(3):
        assert crowd.count() == {Presence.PENDING: 500, Presence.RUNNING: 500}
        (call,) = crowd.slurm.calls()
        assert call.startswith("squeue -h -a -t all -u ")


def test_fifty_thousand_other_jobs_of_the_same_user_change_nothing(crowd: Crowd) -> None:
    crowd.slurm.give_all_to_us()
    assert crowd.count() == {Presence.PENDING: 500, Presence.RUNNING: 500}
    assert len(crowd.slurm.calls()) == 1


def test_many_jobs_that_disappear_together_cause_few_queries(tmp_path: Path) -> None:
    crowd = Crowd(tmp_path, foreign=0)
    crowd.slurm.list_ours([])
    first = crowd.backend.observe(dict.fromkeys(KEYS, 1))
    assert set(first) == set(KEYS)
    counted = Counter(call.split()[0] for call in crowd.slurm.calls())
    assert (counted["sacct"], counted["squeue"] <= 1 + 5) == (1, True)
    assert first[KEYS[-1]].presence is Presence.UNKNOWN
    crowd.backend.observe(dict.fromkeys(KEYS, 1))
    counted = Counter(call.split()[0] for call in crowd.slurm.calls())
    assert (counted["sacct"], counted["squeue"] <= 1 + 5) == (0, True), "disabled accounting is queried once"


def test_an_invalid_listing_raises_and_gives_no_sightings(tmp_path: Path) -> None:
    crowd = Crowd(tmp_path, foreign=0)
    crowd.slurm.list_ours(["garbage" + SEPARATOR + "more"])
    with pytest.raises(BackendUnavailable, match="cannot parse"):
        crowd.backend.observe(dict.fromkeys(KEYS, 1))
    with pytest.raises(BackendUnavailable):
        crowd.backend.slots()
    with pytest.raises(BackendUnavailable):
        crowd.backend.observe({})


def test_a_whole_pass_of_the_supervisor_runs_one_squeue(tmp_path: Path) -> None:
    with closing(World(tmp_path, jobs=20, foreign=100)) as world:
        for _ in range(4):
            world.write_lines()
            world.reconciler.reconcile()
            assert [call.split()[0] for call in world.slurm.calls()] == ["squeue"]
