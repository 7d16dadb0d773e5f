"""The two pods of `doctor`: their manifests, and the findings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from orchestrator.backends.kubernetes.client import KubernetesClient
from orchestrator.backends.kubernetes.probe import CheckResult, ProbeOptions, judge_findings, probe, render_probe
from orchestrator.backends.kubernetes.site import KubernetesSite
from orchestrator.domain.job.attempt import AttemptKey
from orchestrator.domain.specs.spec import Placement
from tests.kubernetes.fake_api import FakeApi, recorded
from tests.kubernetes.test_render import APART, EVERYTHING, OWN

KEY = AttemptKey("doctor-0f", 1)
GOOD: dict[str, Any] = {
    "user": 1000,
    "python": "3.11.2",
    "enough": True,
    "unwritten": "",
    "asked": "0f",
    "missing": {},
    "unreached": "",
    "unmet": "",
    "unseen": False,
    "at": 105.0,
}
PODS = [{**GOOD, "index": 0, "node": "n1"}, {**GOOD, "index": 1, "node": "n2"}]


def judged(site: KubernetesSite = OWN, *, url: str | None = "http://lab", **second: Any) -> dict[str, CheckResult]:
    """`second` changes the findings of the second pod."""
    found = [PODS[0], {**PODS[1], **second}]
    return {
        word.check: word
        for word in judge_findings(found, site, ProbeOptions(url=url), asked=100.0, answered=110.0, nonce="0f")
    }


@pytest.mark.parametrize("site", [OWN, APART, EVERYTHING])
def test_the_probe_s_pods_differ_from_a_job_s_only_in_the_command(site: KubernetesSite) -> None:
    manifests = render_probe(site, KEY, ProbeOptions(url="http://lab"), ".doctor-0f")
    kubernetes_validate.validate(manifests.job, "1.36", strict=True)
    spec = manifests.job["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    mounted = {each["name"] for each in container["volumeMounts"]}
    assert mounted == {each["name"] for each in pod["volumes"]}
    assert {"run", "shm", "tmp"} <= mounted
    assert mounted.isdisjoint({"launch", "packed"})
    assert container["command"][3] == "/run/orchestrator/.doctor-0f"
    assert container["securityContext"]["readOnlyRootFilesystem"] is site.read_only_root
    assert (spec["suspend"], spec["completions"], spec["backoffLimitPerIndex"]) == (False, 2, 0)
    assert "nvidia.com/gpu" not in str(container["resources"])


def test_the_probe_waits_for_admission_in_a_kueue_queue() -> None:
    site = replace(OWN, defaults=Placement(queue="research"))
    assert render_probe(site, KEY, ProbeOptions(), ".doctor-0f").job["spec"]["suspend"] is True


def test_good_findings_pass() -> None:
    words = judged()
    assert [word.good for word in words.values()] == [True] * 7
    assert words["pods"].sentence == "2 pods ran on n1 and n2"


@pytest.mark.parametrize(
    ("second", "check", "good", "sentence"),
    [
        ({"enough": False}, "python", False, "3.10 or newer is required"),
        ({"missing": {"xxhash": "ModuleNotFoundError: x"}}, "torch", False, "xxhash: ModuleNotFoundError"),
        (
            {"unwritten": "PermissionError: 13"},
            "run directory",
            False,
            "user 1000 cannot write /run/orchestrator on n2",
        ),
        ({"unseen": True}, "run directory", False, "do not see each other's files"),
        ({"asked": ""}, "run directory", False, "is not /run/orchestrator on this machine"),
        ({"unmet": "doctor-0: no name"}, "network", False, "cannot reach each other: doctor-0: no name"),
        ({"unreached": "timed out"}, "reports", None, "timed out); until they can, agents report through"),
        ({"at": 97.0}, "clock", None, "3.0 s"),
        ({"at": 114.5}, "clock", None, "4.5 s"),
        ({"at": 111.5}, "clock", True, "agree"),
        ({"node": "n1"}, "pods", True, "the network between two nodes was not tested"),
    ],
)
def test_a_bad_finding_fails_or_warns_with_a_sentence(
    second: dict[str, Any], check: str, good: bool | None, sentence: str
) -> None:
    words = judged(**second)
    assert (words[check].good, sentence in words[check].sentence) == (good, True), words[check].sentence
    assert all(word.good for name, word in words.items() if name != check)


def test_pods_without_a_shared_folder_are_a_warning_and_need_the_service() -> None:
    apart = replace(OWN, claim=None, shared=False)
    words = judged(apart, unseen=True, asked="", unreached="timed out")
    assert (words["run directory"].good, "object store" in words["run directory"].sentence) == (None, True)
    assert "agents cannot report" in words["reports"].sentence
    assert judged(replace(OWN, shared=False), asked="")["run directory"].good is True
    assert judged(url=None)["reports"].good is True


def test_a_refused_probe_fails_and_leaves_nothing(api: FakeApi, client: KubernetesClient, own: KubernetesSite) -> None:
    api.store.next_refusal["services", "create"] = recorded("negative parallelism")
    (word,) = probe(client, own, ProbeOptions())
    assert (word.check, word.good, "must be greater" in word.sentence) == ("pods", False, True)
    (word,) = probe(client, replace(own, service_root=Path("/proc/nosuch")), ProbeOptions())
    assert (word.check, word.good) == ("run directory", False)
    assert api.store.all("jobs") == []
    assert list(own.service_root.glob(".doctor*")) == []


def test_a_pod_that_still_writes_while_it_ends_leaves_nothing(
    client: KubernetesClient, own: KubernetesSite, tmp_path: Path
) -> None:
    slow = tmp_path / "slow"
    slow.write_text("""#!/bin/sh
trap 'sleep 0.5; mkdir -p "$3"; touch "$3/late" "$0.$JOB_COMPLETION_INDEX"; exit 1' TERM
sleep 60 & wait
""")
    slow.chmod(0o755)
    (word,) = probe(client, replace(own, python=str(slow)), ProbeOptions(patience_s=1.0, meet_s=0.5))
    assert (word.check, word.good) == ("pods", False)
    assert sorted(path.name for path in tmp_path.glob("slow.*")) == ["slow.0", "slow.1"]
    assert list(tmp_path.glob(".doctor*")) == []


def test_a_probe_that_kueue_does_not_admit_quotes_its_reason(
    api: FakeApi, client: KubernetesClient, own: KubernetesSite
) -> None:
    site = replace(own, defaults=Placement(queue="research"))
    (word,) = probe(client, site, ProbeOptions(patience_s=0.5, meet_s=0.5))
    assert (word.check, word.good) == ("pods", False)
    assert "waits for Kueue (Kueue has no Workload for it yet)" in word.sentence
    assert api.store.all("jobs") == []


def test_a_pod_that_ends_without_findings_is_reported_with_its_exit_code(
    api: FakeApi, client: KubernetesClient, own: KubernetesSite
) -> None:
    """The first pod cannot listen, and the second does not wait for it."""
    (word,) = probe(client, own, ProbeOptions(modules=("json",), port=70_000, meet_s=0))
    assert (word.check, word.good) == ("pods", False)
    assert "ended with exit code 1" in word.sentence
    assert api.store.all("jobs") == []
