"""Every limit of a QOS or an account that Slurm can name is explained."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.backends.slurm.limits import explain_limit
from orchestrator.domain.observation.observation import CAN_NEVER_START

# All such names in the library of Slurm 22.05 (strings libslurmfull.so).
NAMES = (Path(__file__).parent / "records" / "limits-22.05.txt").read_text().split()


@pytest.mark.parametrize("name", NAMES)
def test_every_limit_has_words_and_a_limit_of_one_job_says_that_it_can_never_start(name: str) -> None:
    words = explain_limit(name)
    assert words is not None
    assert ("its account" in words) == (name.startswith("Assoc") or name.endswith("PerAccount"))
    of_one_job = "PerJob" in name or "PerNode" in name or "Min" in name.partition("Minutes")[0]
    assert words.startswith(CAN_NEVER_START) == of_one_job


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("QOSMaxGRESPerUser", "its QOS allows its user no more GRES"),
        ("AssocGrpCPUMinutesLimit", "its account allows all its jobs together no more CPU minutes"),
        ("AssocGrpCpuLimit", "its account allows all its jobs together no more CPUs"),
        ("AssocMaxJobsLimit", "its account allows its user no more running jobs"),
        ("MaxNodePerAccount", "its QOS allows its account no more nodes"),
        ("AssocMaxWallDurationPerJobLimit", f"{CAN_NEVER_START} with more wall time than its account allows one job"),
        ("QOSMaxNodePerJobLimit", f"{CAN_NEVER_START} with more nodes than its QOS allows one job"),
        ("QOSMinCpuNotSatisfied", f"{CAN_NEVER_START}: its QOS requires more CPUs of a job"),
        ("AssocGrpQuantumLimit", None),
        ("Priority", None),
        ("", None),
    ],
)
def test_the_words_of_a_limit(name: str, words: str | None) -> None:
    assert explain_limit(name) == words
