"""Hostile text in any field of a spec never becomes a command, an option or a document."""

from __future__ import annotations

import json
import subprocess
from base64 import b64decode
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.backends.kubernetes.render import LAUNCH_FILE, Manifests, render_manifests
from orchestrator.backends.kubernetes.render import render_native as render_yaml
from orchestrator.backends.local.render import render_processes
from orchestrator.backends.slurm.render import render_native, render_node_launch, render_request
from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.launch_plan import LaunchPlan, build_plan
from orchestrator.domain.specs.spec import JobSpec
from tests.kubernetes.test_render import OWN
from tests.slurm.test_render import CPUS as SLURM
from tests.spec_places import SHELL, Place, accepted, find_places
from tests.unit.situations import a_job, an_attempt
from tests.unit.test_launch import SITE
from trainer.contract import env
from trainer.contract.node import parse_node_launch
from trainer.contract.node import render_node_launch as render_node_document
from trainer.contract.pod import parse_pod_launch

PLACES = find_places()
KUBERNETES = replace(OWN, free_overlays=True)  # the check of overlays has its own tests
FREE = (
    *("run.command.[]", "run.script", "run.args.[]", "run.workdir", "run.image", "run.env.{value}"),
    *("resources.gpu_type", "resources.extra.{value}", "placement.partition", "placement.options.{value}"),
    *("placement.tolerations.[].{key}", "placement.overlay.{value}", "placement.node_selector.{value}"),
    *("snapshot.dir", "snapshot.from", "labels.{value}", "after.[]", "notify.[]", "run.trainer.data"),
)


@cache
def plans(place: Place) -> tuple[LaunchPlan, ...]:
    return tuple(plan_of(spec) for text in SHELL for spec in accepted(place, text))


def plan_of(spec: JobSpec) -> LaunchPlan:
    return build_plan(a_job(spec=spec), an_attempt(AttemptState.INTENDED), SITE)


def bash(script: str, here: Path) -> list[str]:
    """Run a script and return its NUL-separated output. The script must not change the folder."""
    before = sorted(here.rglob("*"))
    done = subprocess.run(["bash"], input=script.encode(), cwd=here, capture_output=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert sorted(here.rglob("*")) == before
    return done.stdout.decode().split("\0")[:-1]


def test_the_places_cover_the_whole_spec() -> None:
    names = [str(place) for place in PLACES]
    assert set(FREE) <= set(names)
    assert len(names) == len(set(names))
    assert {str(place).partition(".")[0] for place in PLACES} >= {"name", "run", "placement", "supervise", "snapshot"}


@pytest.mark.parametrize("name", FREE)
def test_hostile_text_is_accepted_in_free_fields(name: str) -> None:
    assert plans(Place(tuple(name.split("."))))


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_the_rendering_of_a_local_job_is_what_a_shell_runs(place: Place, tmp_path: Path) -> None:
    tried = plans(place)
    texts = [render_processes(plan).text for plan in tried]
    stubs = "cd() { printf 'cd\\0%s\\0' \"$@\"; }\nenv() { printf '%s\\0' \"$@\"; }\n"
    expected = [
        word
        for plan in tried
        for replica in range(plan.max_nodes)
        for variables in [[f"{name}={value}" for name, value in sorted(plan.shared_environment.items())]]
        for word in ("cd", plan.workdir, *variables, f"{env.REPLICA}={replica}", *plan.command)
    ]
    assert bash(stubs + "\n".join(texts), tmp_path) == expected


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_sbatch_gets_each_value_as_one_argument_and_its_script_runs_none(place: Place, tmp_path: Path) -> None:
    tried = plans(place)
    requests = [render_request(plan, SLURM) for plan in tried]
    stub = "sbatch() { printf '%s\\0' \"$@\"; cat; printf '\\0'; }\n"
    received = bash(stub + "\n".join(render_native(request).text for request in requests), tmp_path)
    assert received == [word for request in requests for word in (*request.arguments, request.script)]
    for request in requests:
        own = [argument.partition("=")[0] for argument in request.arguments]
        assert own.count("--job-name") == own.count("--output") == own.count("--comment") == 1
        assert all(argument.startswith("--") for argument in request.arguments)


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_a_batch_script_starts_only_its_step(place: Place, tmp_path: Path) -> None:
    job_dir, beside = tmp_path / "run", tmp_path / "beside"
    (job_dir / "attempts" / "1").mkdir(parents=True)
    beside.mkdir()
    own = replace(SLURM, python="true")
    scripts = {render_request(replace(plan, job_dir=str(job_dir)), own).script for plan in plans(place)}
    stubs = f'srun() {{ printf "%s\\0" "$@" >>"{tmp_path}/srun"; }}\n'
    allocation = "SLURM_JOB_ID=7 SLURM_JOB_NUM_NODES=1 SLURM_JOB_NODELIST=n1 SLURMD_NODENAME=n1\n"
    for script in scripts:
        assert bash(f"{stubs}{allocation}{script}", beside) == []
    started = (tmp_path / "srun").read_text().split("\0") if scripts else []
    assert started.count("trainer.elastic.node") == len(scripts)
    assert sorted(path.name for path in (job_dir / "attempts" / "1").iterdir()) == ["allocation-7"] * bool(scripts)


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_the_document_for_the_nodes_equals_the_plan(place: Place) -> None:
    for plan in plans(place):
        written = json.dumps(render_node_document(render_node_launch(plan, SLURM, workdir=plan.workdir)))
        read = parse_node_launch(json.loads(written))
        assert (read.command, read.workdir) == (plan.command, plan.workdir)
        assert plan.shared_environment.items() <= read.environment.items()


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_a_manifest_has_three_documents_and_the_usual_containers(place: Place) -> None:
    plain = manifests_of(plan_of(JobSpec.model_validate({"name": "demo", "run": {"command": ["true"]}})))
    for plan in plans(place)[::3]:  # YAML is slow
        made = manifests_of(plan)
        shown = list(yaml.load_all(render_yaml(made).text, Loader=yaml.CSafeLoader))
        assert shown[:2] == [made.job, made.service]
        assert [each["kind"] for each in shown] == ["Job", "Service", "Secret"]
        assert [each["metadata"]["name"] for each in shown] == [plain.job["metadata"]["name"]] * 3
        assert containers(made) == containers(plain) or str(place).startswith("placement.overlay")
        launch = parse_pod_launch(json.loads(b64decode(made.secret["data"][LAUNCH_FILE])))
        assert launch.node.command == plan.command


def manifests_of(plan: LaunchPlan) -> Manifests:
    return render_manifests(plan, KUBERNETES, workdir=plan.workdir)


def containers(manifests: Manifests) -> list[dict[str, Any]]:
    """The containers without their image, which a job may choose and which is repeated in a variable."""
    pod = manifests.job["spec"]["template"]["spec"]
    return [
        {
            **{name: value for name, value in each.items() if name not in ("image", "resources")},
            "env": [one for one in each["env"] if one["name"] != env.IMAGE],
        }
        for each in pod["containers"]
    ]


@pytest.mark.parametrize("text", ["$(touch canary)", "`touch canary`", "; touch canary #", "| touch canary"])
def test_an_unquoted_attack_is_detected(tmp_path: Path, text: str) -> None:
    """The test would fail without quoting."""
    with pytest.raises(AssertionError):
        bash(f"echo x {text}\n", tmp_path)
