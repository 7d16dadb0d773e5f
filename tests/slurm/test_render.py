"""Requests to sbatch equal golden files, and no user's value reaches a shell unquoted."""

from __future__ import annotations

import json
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.backends.slurm.render import render_native, render_node_launch, render_request
from orchestrator.backends.slurm.site import SlurmSite
from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.launch_plan import LaunchPlan, Site, build_plan
from orchestrator.domain.specs.spec import Placement
from tests.examples import examples
from tests.launch_text import check_launch
from tests.unit.situations import a_job, a_spec, an_attempt
from trainer.contract import env
from trainer.contract.node import HEAD, LOCAL, fill_in

ROOT = Path("/shared/runs")
SITE = Site(
    root=ROOT,
    python="python3",
    child="/shared/runs/.agents/0f/trainer/elastic/child.py",
    rendezvous_host=HEAD,
    local_address=LOCAL,
    gpus_per_node=8,
    report_url=None,
    stop_timeout_s=10,
    log_limit_bytes=1024,
)
OWN = SlurmSite(root=ROOT, service_root=ROOT, agent_dir=ROOT / ".agents" / "0f", gpus_per_node=8)
CPUS = replace(OWN, gpus_per_node=0)
CASES: dict[str, tuple[SlurmSite, dict[str, object], dict[str, object]]] = {
    "plain": (CPUS, {"topology": {"nodes": "2", "workers_per_node": 2}}, {}),
    "elastic": (
        OWN,
        {"topology": {"nodes": "2:8", "workers_per_node": "gpu"}, "resources": {"memory_gb": 64.5, "gpu_type": "a100"}},
        {"nodes": "2:8", "excluded_nodes": ("n3", "n5")},
    ),
    "everything": (
        replace(
            OWN,
            defaults=Placement(partition="main", account="research", options={"mail-type": "END"}),
            options=("--licenses=data:1",),
            interface="ib0",
            modules=("cuda/12.4", "it's odd"),
            prolog="source /opt/conda/bin/activate train\n",
            container_options=("--no-container-mount-home",),
            notice_s=300,
        ),
        {
            "run": {"script": "train.py", "image": "registry#team/train:1", "workdir": "/shared/code"},
            "topology": {"nodes": "1"},
            "resources": {"cpus": 12, "gpus": 2, "extra": {"nvme": "100G"}},
            "placement": {
                "partition": "gpu",
                "qos": "high",
                "reservation": "maintenance",
                "constraint": "[rack1|rack2]",
                "nodelist": ["n1"],
                "exclude": ["n2"],
                "exclusive": True,
                "time_limit_s": 3601,
                "dependency": "afterok:17",
                "options": {"hint": "nomultithread", "spread-job": ""},
            },
        },
        {},
    ),
}


def planned(name: str) -> tuple[LaunchPlan, SlurmSite]:
    own, fields, attempt = CASES[name]
    spec = a_spec(**fields)
    made = an_attempt(AttemptState.INTENDED, **{"nodes": spec.topology.nodes, **attempt})
    return build_plan(a_job(spec=spec), made, SITE), own


@pytest.mark.parametrize("name", CASES)
def test_a_request_equals_its_golden_file(name: str) -> None:
    plan, own = planned(name)
    native = render_native(render_request(plan, own))
    check_launch(f"slurm/{name}", plan, native)
    checked = subprocess.run(["bash", "-n"], input=native.text, text=True, capture_output=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_the_script_contains_no_variable_or_argument_of_the_job() -> None:
    spec = a_spec(run={"script": "train.py", "args": ["--key=hush-1"], "env": {"API_KEY": "hush-2"}})
    plan = build_plan(a_job(spec=spec), an_attempt(AttemptState.INTENDED), SITE)
    request = render_request(plan, OWN)
    launch = render_node_launch(plan, OWN, workdir="/w")
    assert "hush" not in request.script + " ".join(request.arguments)
    assert launch.environment["API_KEY"] == "hush-2"
    assert env.REPLICA not in launch.environment


WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=40)
TRICKS = ["$(touch gone)", "`touch gone`", "a'b\"c", "x\nEND_OF_SCRIPT\ntouch gone", "-n", "\\", "~", "*", "\r", "#"]
NASTY = st.one_of(WORDS, st.sampled_from(TRICKS))
FOLDER = NASTY.map(lambda text: text.replace("/", "-").replace("%", "-")).filter(lambda text: text not in (".", ".."))


@settings(max_examples=examples(15, 200))
@given(NASTY, NASTY, NASTY)
def test_the_shown_text_run_in_a_shell_makes_the_same_request(partition: str, module: str, option: str) -> None:
    plan, _ = planned("plain")
    place = Placement(partition=partition, constraint=option, options={"mcs-label": module})
    request = render_request(replace(plan, placement=place), replace(CPUS, modules=(module,)))
    with tempfile.TemporaryDirectory() as here:
        stub = 'sbatch() { printf "%s\\0" "$@"; cat; }\n'
        output = run_bash(stub + render_native(request).text, Path(here))
        assert list(Path(here).iterdir()) == []
    *arguments, script = output.split("\0")
    assert tuple(arguments) == request.arguments
    assert script == request.script


@settings(max_examples=examples(15, 200))
@given(FOLDER, NASTY)
def test_the_script_quotes_paths_and_modules(folder: str, module: str) -> None:
    plan, _ = planned("plain")
    with tempfile.TemporaryDirectory() as here:
        job_dir, calls = Path(here, "runs", folder), Path(here, "calls")
        (job_dir / "attempts" / "1").mkdir(parents=True)
        calls.mkdir()
        own = replace(CPUS, modules=(module,), python="true")
        script = render_request(replace(plan, job_dir=str(job_dir)), own).script
        stubs = f'module() {{ printf "%s" "$2" >{calls}/module; }}\nsrun() {{ printf "%s\\0" "$@" >{calls}/srun; }}\n'
        place = "SLURM_JOB_ID=7 SLURM_JOB_NUM_NODES=1 SLURM_JOB_NODELIST=n1 SLURMD_NODENAME=n1\n"
        run_bash(stubs + place + script, calls)
        assert sorted(path.name for path in calls.iterdir()) == ["module", "srun"]
        assert (calls / "module").read_bytes().decode() == module
        assert (calls / "srun").read_bytes().decode().split("\0")[-2] == str(job_dir / "attempts" / "1")
        assert (job_dir / "attempts" / "1" / "allocation-7").read_text() == "1 n1\n"


def run_bash(script: str, here: Path) -> str:
    done = subprocess.run(["bash", "-c", script], capture_output=True, cwd=here, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


def test_addresses_are_filled_only_into_the_launcher_s_flags() -> None:
    plan, _ = planned("plain")
    command = [*plan.command, f"--rdzv-endpoint={HEAD}:1"]
    filled = fill_in(command, head="10.0.0.1", local="10.0.0.2")
    assert f"--rdzv-endpoint=10.0.0.1:{plan.port}" in filled
    assert "--local-addr=10.0.0.2" in filled
    assert filled[-1] == f"--rdzv-endpoint={HEAD}:1"
    assert HEAD not in json.dumps(filled[:-1])


def test_secrets_are_only_in_the_private_launch_document() -> None:
    plan = build_plan(a_job(), an_attempt(), SITE, {"KEY": "hunter2-hunter2"})
    request = render_request(plan, CPUS)
    assert "hunter2" not in request.script + " ".join(request.arguments) + render_native(request).text
    assert render_node_launch(plan, CPUS, workdir="/w").environment["KEY"] == "hunter2-hunter2"
