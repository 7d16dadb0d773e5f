"""Manifests: golden files, the API's schemas, and no secrets in what is shown."""

from __future__ import annotations

import io
import json
import zipfile
from base64 import b64decode
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.backends import ship
from orchestrator.backends.kubernetes.agent import render_agent
from orchestrator.backends.kubernetes.overlay import apply_overlay
from orchestrator.backends.kubernetes.render import (
    Manifests,
    owned,
    render_manifests,
    render_name,
    render_native,
)
from orchestrator.backends.kubernetes.site import KubernetesSite
from orchestrator.domain.errors import LaunchRefused
from orchestrator.domain.job.attempt import AttemptKey, AttemptState
from orchestrator.domain.job.launch_plan import LaunchPlan, Site, build_plan
from orchestrator.domain.specs.spec import Placement
from tests.launch_text import check_launch
from tests.unit.situations import a_job, a_spec, an_attempt
from trainer.contract.node import HEAD, LOCAL
from trainer.contract.pod import parse_pod_launch

VERSIONS = ("1.31", "1.33", "1.36")
ROOT = Path("/run/orchestrator")
SITE = Site(
    root=ROOT,
    python="python3",
    child="/run/orchestrator/.agents/0f/trainer/elastic/child.py",
    rendezvous_host=HEAD,
    local_address=LOCAL,
    gpus_per_node=0,
    report_url="https://orchestrator.example/api/v1/reports",
    stop_timeout_s=30,
    log_limit_bytes=1024,
)
OWN = KubernetesSite(
    namespace="training",
    image="registry.example/trainer:1",
    root=ROOT,
    service_root=ROOT,
    shared=True,
    agent_dir=ROOT / ".agents" / "0f",
    claim="runs",
)
EVERYTHING = replace(
    OWN,
    agent_dir=None,
    agent_image="registry.example/orchestrator-agent:1",
    claim=None,
    shared=False,
    defaults=Placement(node_selector={"pool": "train"}, tolerations=({"key": "train", "operator": "Exists"},)),
    overlay={"spec": {"template": {"spec": {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}}}},
    service_account="trainer",
    pull_secrets=("registry",),
    priority_class="batch",
    gpus_per_node=8,
    shm_gb=16,
    user=0,
    read_only_root=False,
)
APART = replace(OWN, claim=None, shared=False, agent_dir=None, agent_map="elastic-orchestrator-agent-0f")
CASES: dict[str, tuple[KubernetesSite, dict[str, Any], dict[str, Any]]] = {
    "plain": (OWN, {"topology": {"nodes": "2", "workers_per_node": 2}}, {}),
    "elastic": (
        replace(OWN, claim=None, host_path="/srv/runs"),
        {"topology": {"nodes": "2:8"}, "resources": {"cpus": 1.5, "memory_gb": 4}, "placement": {"queue": "research"}},
        {"nodes": "2:8", "excluded_nodes": ("node-5", "node-3")},
    ),
    "apart": (APART, {"topology": {"nodes": "1"}}, {}),
    "everything": (
        EVERYTHING,
        {
            "run": {
                "script": "train.py",
                "image": "registry.example/team/train:2",
                "env": {"SECRET_OF_MINE": "s3cr3t"},
            },
            "topology": {"nodes": "4", "workers_per_node": "gpu"},
            "resources": {"cpus": 96, "memory_gb": 512, "gpus": 8, "gpu_type": "A100", "extra": {"rdma/hca": "1"}},
            "placement": {
                "exclude": ["node-2"],
                "node_selector": {"zone": "a"},
                "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
                "time_limit_s": 3600.5,
                "overlay": {
                    "spec": {
                        "template": {
                            "spec": {
                                "containers": [
                                    {"name": "agent", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}
                                ],
                                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
                            }
                        }
                    }
                },
            },
        },
        {"nodes": "4"},
    ),
}


def plan_of(spec: dict[str, Any], attempt: dict[str, Any], *, gpus: int = 0) -> LaunchPlan:
    given_spec = a_spec(**spec)
    nodes = attempt.get("nodes", given_spec.topology.nodes)
    made = an_attempt(AttemptState.INTENDED, **{**attempt, "nodes": nodes})
    return build_plan(a_job(spec=given_spec), made, replace(SITE, gpus_per_node=gpus))


def manifests_of(case: str) -> Manifests:
    own, spec, attempt = CASES[case]
    return render_manifests(plan_of(spec, attempt, gpus=own.gpus_per_node), own, workdir="/code")


def pod_of(manifests: Manifests) -> dict[str, Any]:
    pod: dict[str, Any] = manifests.job["spec"]["template"]["spec"]
    return pod


@pytest.mark.parametrize("case", CASES)
def test_manifests_equal_the_golden_file(case: str) -> None:
    own, spec, attempt = CASES[case]
    plan = plan_of(spec, attempt, gpus=own.gpus_per_node)
    check_launch(f"kubernetes/{case}", plan, render_native(manifests_of(case)))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("case", CASES)
def test_every_object_is_valid_by_the_api_s_schema(case: str, version: str) -> None:
    manifests = manifests_of(case)
    created = {"metadata": {"name": manifests.job["metadata"]["name"], "uid": "1b44cd63-4cc6-4ba4-b2ff-000000000000"}}
    for each in (manifests.job, owned(manifests.service, created), owned(manifests.secret, created)):
        kubernetes_validate.validate(each, version, strict=True)


def test_the_packed_agent_fits_into_a_config_map() -> None:
    packed = ship.pack_agent(ship.find_package())
    assert packed == ship.pack_agent(ship.find_package())
    manifest = render_agent("elastic-orchestrator-agent-0f", "training", packed)
    kubernetes_validate.validate(manifest, "1.36", strict=True)
    assert len(packed) < 1024 * 1024  # the limit of a ConfigMap
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        assert {"trainer/elastic/pod.py", "trainer/contract/pod.py"} <= set(archive.namelist())


def test_the_schema_check_refuses_unknown_fields() -> None:
    wrong = {**manifests_of("plain").job, "spec": {**manifests_of("plain").job["spec"], "paralelism": 2}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.36", strict=True)


def test_the_job_s_environment_is_not_shown() -> None:
    manifests = manifests_of("everything")
    assert "s3cr3t" not in render_native(manifests).text
    assert "s3cr3t" not in json.dumps([manifests.job, manifests.service])
    document = parse_pod_launch(json.loads(b64decode(manifests.secret["data"]["launch.json"])))
    assert document.node.environment["SECRET_OF_MINE"] == "s3cr3t"
    assert (document.replicas, document.node.workdir) == (4, "/code")


def test_project_secrets_are_only_in_the_secret_object() -> None:
    site, spec, attempt = CASES["everything"]
    plan = replace(plan_of(spec, attempt, gpus=site.gpus_per_node), secrets={"API_KEY": "hunter2-hunter2"})
    manifests = render_manifests(plan, site, workdir="/code")
    document = parse_pod_launch(json.loads(b64decode(manifests.secret["data"]["launch.json"])))
    assert document.node.environment["API_KEY"] == "hunter2-hunter2"
    assert "hunter2" not in render_native(manifests).text + json.dumps([manifests.job, manifests.service])


def test_the_job_owns_the_other_objects() -> None:
    manifests = manifests_of("plain")
    job = {**manifests.job, "metadata": {**manifests.job["metadata"], "uid": "u-1"}}
    (owner,) = owned(manifests.secret, job)["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["name"]) == ("Job", "u-1", manifests.job["metadata"]["name"])


def test_pods_are_not_replaced_and_the_job_starts_suspended() -> None:
    spec = manifests_of("plain").job["spec"]
    assert (spec["backoffLimitPerIndex"], spec["suspend"], spec["completionMode"]) == (0, True, "Indexed")
    assert "podFailurePolicy" not in spec
    assert pod_of(manifests_of("plain"))["restartPolicy"] == "Never"


def test_pods_of_an_elastic_job_are_replaced_unless_their_agent_ended_by_itself() -> None:
    spec = manifests_of("elastic").job["spec"]
    assert (spec["backoffLimitPerIndex"], spec["podReplacementPolicy"]) == (6, "Failed")
    ignored, final = spec["podFailurePolicy"]["rules"]
    assert (ignored["action"], ignored["onPodConditions"][0]["type"]) == ("Ignore", "DisruptionTarget")
    assert final["action"] == "FailIndex"
    assert final["onExitCodes"] == {"containerName": "agent", "operator": "NotIn", "values": [137, 143, 255]}


def test_pods_of_torchrun_are_not_replaced_because_its_group_cannot_grow() -> None:
    plan = plan_of({"topology": {"nodes": "2:8"}, "launcher": "torchrun"}, {"nodes": "2:8"})
    assert render_manifests(plan, OWN, workdir="/code").job["spec"]["backoffLimitPerIndex"] == 0


def test_an_init_container_that_fails_by_itself_is_final_too() -> None:
    plan = plan_of({"topology": {"nodes": "2:8"}}, {"nodes": "2:8"})
    rules = render_manifests(plan, EVERYTHING, workdir="/code").job["spec"]["podFailurePolicy"]["rules"]
    assert [rule["onExitCodes"]["containerName"] for rule in rules[1:]] == ["agent", "unpack-agent"]


def test_a_kueue_queue_is_a_label() -> None:
    assert manifests_of("elastic").job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "research"


def test_nodes_with_failures_are_avoided_by_preference_and_the_user_s_exclusions_are_required() -> None:
    """If a broken switch marked all nodes, a requirement would leave none for an hour."""
    requested = pod_of(manifests_of("elastic"))["affinity"]["nodeAffinity"]
    assert requested.keys() == {"preferredDuringSchedulingIgnoredDuringExecution"}
    (request,) = requested["preferredDuringSchedulingIgnoredDuringExecution"]
    # Each requirement in matchFields has one value, and all of a term must hold.
    assert [(each["operator"], each["values"]) for each in request["preference"]["matchFields"]] == [
        ("NotIn", ["node-3"]),
        ("NotIn", ["node-5"]),
    ]
    assert request["weight"] == 100
    demanded = pod_of(manifests_of("everything"))["affinity"]["nodeAffinity"]
    assert demanded.keys() == {"requiredDuringSchedulingIgnoredDuringExecution"}
    (term,) = demanded["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [each["values"] for each in term["matchFields"]] == [["node-2"]]


def test_no_pod_runs_as_root_unless_configured() -> None:
    pod = pod_of(manifests_of("plain"))
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert pod["automountServiceAccountToken"] is False
    assert "runAsNonRoot" not in pod_of(manifests_of("everything"))["securityContext"]


def test_pods_have_shared_memory_and_a_grace_period_for_a_snapshot() -> None:
    pod = pod_of(manifests_of("everything"))
    volumes = {each["name"]: each for each in pod["volumes"]}
    assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "16384Mi"}
    assert pod["terminationGracePeriodSeconds"] == EVERYTHING.grace_s


def test_an_overlay_cannot_change_the_name_labels_or_suspension() -> None:
    hiding = {
        "metadata": {"name": "other", "labels": None, "annotations": {"mine": "1"}},
        "spec": {"suspend": False, "template": {"metadata": {"labels": {"team": "a"}}}},
    }
    spec = {"topology": {"nodes": "2"}, "placement": {"overlay": hiding}}
    job = render_manifests(plan_of(spec, {}), replace(OWN, free_overlays=True), workdir="/").job
    plain = render_manifests(plan_of({"topology": {"nodes": "2"}}, {}), OWN, workdir="/").job
    assert job["metadata"]["name"] == plain["metadata"]["name"]
    assert job["metadata"]["labels"] == plain["metadata"]["labels"]
    assert job["metadata"]["annotations"] == {**plain["metadata"]["annotations"], "mine": "1"}
    assert job["spec"]["suspend"] is True
    pod_labels = job["spec"]["template"]["metadata"]["labels"]
    assert pod_labels == {**plain["spec"]["template"]["metadata"]["labels"], "team": "a"}


def test_pythonpath_of_an_overlay_is_appended_to_the_agent_s() -> None:
    mounted = {"name": "agent", "env": [{"name": "PYTHONPATH", "value": "/mnt/site-packages"}]}
    overlay = {"spec": {"template": {"spec": {"containers": [mounted]}}}}
    job = render_manifests(plan_of({"topology": {"nodes": "1"}}, {}), replace(OWN, overlay=overlay), workdir="/").job
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert [each["value"] for each in container["env"] if each["name"] == "PYTHONPATH"] == [
        f"{OWN.agent_dir}:/mnt/site-packages"
    ]


def test_lists_of_named_objects_are_merged_by_name() -> None:
    found = {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}], "command": ["x"], "gone": 1}
    patch = {
        "env": [{"name": "B", "value": "3"}, {"name": "A", "$patch": "delete"}, {"name": "C", "value": "4"}],
        "command": ["y", "z"],
        "gone": None,
    }
    merged = apply_overlay(found, patch)
    assert merged == {
        "env": [{"name": "B", "value": "3"}, {"name": "C", "value": "4"}],
        "command": ["y", "z"],
    }
    assert apply_overlay({"a": {"b": 1, "c": 2}}, {"a": {"$patch": "replace", "d": 3}}) == {"a": {"d": 3}}
    # TOML has no null, so this is its way to delete.
    assert apply_overlay({"a": {"b": 1}, "c": 2}, {"a": {"$patch": "delete"}}) == {"c": 2}


def of_pod(**patch: Any) -> dict[str, Any]:
    return {"spec": {"template": {"spec": patch}}}


@pytest.mark.parametrize(
    ("overlay", "fault"),
    [
        ({"spec": None}, "spec.template.spec is not an object"),
        ({"spec": "x"}, "spec.template.spec is not an object"),
        ({"$patch": "replace"}, "metadata is not an object"),
        ({"metadata": {"labels": ["x"]}}, "metadata.labels is not an object"),
        ({"spec": {"template": {"metadata": {"labels": "x"}}}}, "spec.template.metadata.labels is not an object"),
        (of_pod(containers=None), "not a list of containers"),
        (of_pod(containers={"name": "agent"}), "not a list of containers"),
        (of_pod(containers=[{"image": "x"}]), "not a list of containers"),
        (of_pod(containers=["agent"]), "not a list of containers"),
        (of_pod(containers=[{"name": "agent", "$patch": "delete"}]), "no container is named agent"),
        (of_pod(containers=[{"name": "agent", "env": [{"value": "x"}]}]), "env of container agent"),
    ],
)
def test_an_overlay_that_breaks_the_job_is_refused(overlay: dict[str, Any], fault: str) -> None:
    with pytest.raises(LaunchRefused, match=fault):
        render_manifests(plan_of({}, {}), replace(OWN, overlay=overlay), workdir="/")


def test_an_overlay_may_remove_labels_and_variables() -> None:
    overlay = {"metadata": {"labels": None, "annotations": None}, **of_pod(containers=[{"name": "agent", "env": None}])}
    job = render_manifests(plan_of({"placement": {"overlay": overlay}}, {}), OWN, workdir="/").job
    kubernetes_validate.validate(job, "1.36", strict=True)
    assert job["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "elastic-orchestrator"


@given(st.text(alphabet="abcxyz019-", min_size=1, max_size=90), st.integers(1, 9999))
def test_names_are_unique_labels_with_room_for_an_index(text: str, number: int) -> None:
    name = render_name(AttemptKey(text, number))
    assert len(name) <= 52
    assert name[0].isalpha()
    assert name[-1].isalnum()
    assert all(char.isdigit() or char == "-" or ("a" <= char <= "z") for char in name)
    assert name != render_name(AttemptKey(text, number + 1))
    assert name == render_name(AttemptKey(text, number))


def test_a_short_name_is_the_attempt_s_and_a_long_one_begins_with_it() -> None:
    assert render_name(AttemptKey("gpt-1a2b", 3)) == "gpt-1a2b-a3"
    long = render_name(AttemptKey("g" * 63 + "-1a2b", 3))
    assert long.startswith("ggggg")
    assert long != render_name(AttemptKey("g" * 63 + "-1a2c", 3))
