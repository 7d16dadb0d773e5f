"""AppDef -> JobSpec, with golden files. UPDATE_GOLDEN=1 rewrites them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from torchx.components import dist, utils
from torchx.specs import AppDef, BindMount, Resource, Role

from orchestrator.domain.specs.validation import parse_spec
from orchestrator.torchx_scheduler.component import elastic
from orchestrator.torchx_scheduler.torchrun import Untranslatable
from orchestrator.torchx_scheduler.translate import translate

GOLDEN = Path(__file__).parents[1] / "golden" / "torchx"
NOTHING = Resource(cpu=-1, gpu=-1, memMB=-1)
GPU_NODE = Resource(cpu=32, gpu=8, memMB=512 * 1024, devices={"vpc.amazonaws.com/efa": 4})


def role(*args: str, entrypoint: str = "torchrun", **more: object) -> AppDef:
    defaults: dict[str, object] = {"name": "worker", "image": "", "resource": Resource(cpu=1, gpu=0, memMB=1024)}
    return AppDef("app", [Role(entrypoint=entrypoint, args=list(args), **{**defaults, **more})])


def shell(text: str) -> AppDef:
    return role("-c", text, entrypoint="bash")


CASES: dict[str, Callable[[], AppDef]] = {
    "ddp_script": lambda: dist.ddp("--lr", "a 'b' $HOME", script="src/train.py", j="1x2", env={"LOGLEVEL": "INFO"}),
    "ddp_elastic_module": lambda: dist.ddp(
        *("--out", "${img_root}/out"), m="my.train", j="2:4x8", name="exp/My_Run.1", memMB=4096, max_retries=2
    ),
    "ddp_static_debug": lambda: dist.ddp(script="train.py", j="2x1", rdzv_backend="static", debug=True, gpu=1),
    "torchrun_args": lambda: role(
        *("--nnodes=2", "--nproc-per-node=gpu", "--rdzv-backend=c10d", "--standalone", "--max-restarts", "5"),
        *("-t", "3", "--", "train.py", "--nnodes", "7"),
        resource=GPU_NODE,
        image="registry/trainer:1",
    ),
    "no_python": lambda: role("--nproc_per_node", "2", "--no_python", "./train.sh", "-m", "x"),
    "python_m": lambda: role(
        *("-m", "torch.distributed.run", "--nproc_per_node", "2", "-m", "pkg.train", "a=b"),
        entrypoint="/usr/bin/python3",
    ),
    "handwritten_shell": lambda: shell('torchrun --nnodes 2 "my script.py" --flag'),
    "own_component": lambda: elastic("--lr", "a b", script="train.py", j="1:2x4", env={"A": "1"}),
    "own_component_alone": lambda: elastic(m="pkg.train", j="2", name="mine", max_restarts=7),
    "tracked": lambda: role(
        "train.py",
        env={
            "TORCHX_JOB_ID": "orchestrator://torchx/${app_id}",
            "TORCHX_TRACKERS": "orchestrator,fsspec",
            "TORCHX_TRACKER_FSSPEC_CONFIG": "/a",
            "TORCHX_PARENT_RUN_ID": "sweep-1",
            "TORCHX_TRACKING_EXPERIMENT_NAME": "dropped",
        },
    ),
    "command": lambda: utils.echo("hello world", num_replicas=3),
    "elastic_command": lambda: role("--serve", entrypoint="./run", num_replicas=4, min_replicas=2),
    "shell_command": lambda: utils.sh("echo", "$HOME", "&&", "true"),
}


@pytest.fixture(autouse=True)
def no_log_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOGLEVEL", raising=False)


@pytest.mark.parametrize("case", CASES)
def test_an_app_becomes_the_golden_spec(case: str) -> None:
    options = {"cluster": "lab", "project": "nlp", "priority": 5, "launcher": None} if case == "command" else {}
    spec = translate(CASES[case](), options, workdir="/home/me/project")
    parse_spec(spec)
    text = json.dumps(spec, indent=2) + "\n"
    golden = GOLDEN / f"{case}.json"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()


@pytest.mark.parametrize(
    ("app", "message"),
    [
        (AppDef("app"), "the roles none"),
        (AppDef("app", [Role("a", "", entrypoint="x"), Role("b", "", entrypoint="y")]), "the roles a, b"),
        (role("train.py", mounts=[BindMount("/a", "/b")]), "has mounts"),
        (shell("torchrun --nnodes 2 train.py && touch done"), "in a shell script that does more"),
        (shell("torchrun --nnodes $N train.py"), "in a shell script that does more"),
        (role("--nnodes", "2"), "names no script"),
        (role("--numa-binding", "node", "a.py"), "--numa-binding has no counterpart"),
        (role("--run-path", "a.py"), "--run-path has no counterpart"),
        (role("--nproc_per_node", "xpu", "a.py"), "is 'xpu', must be a number or one of auto, cpu, gpu"),
        (role("--nproc_per_node", "auto", "a.py", resource=NOTHING), "requests no CPUs"),
        (role("--pass-local-rank", "--no-python", "a"), "gets no --local-rank"),
        (role("-m", "torch.distributed.launch", "--no-python", "a", entrypoint="python"), "add --use-env"),
        (role("--max_restarts", "-1", "a.py"), "--max_restarts is '-1'"),
        (role("--nnodes"), "--nnodes has no value"),
        (role("-m", "--no-python", "a"), "exclude each other"),
        (role("a.py", "--id", "${app_id}"), "args of role worker: ${app_id}.*ORCHESTRATOR_JOB_ID"),
        (role("a.py", env={"ME": "${replica_id}"}), "env ME of role worker: .*GROUP_RANK"),
        (role("${rank0_env}", entrypoint="./a"), "MASTER_ADDR"),
    ],
)
def test_an_app_that_cannot_be_translated_is_refused_with_the_reason(app: AppDef, message: str) -> None:
    with pytest.raises(Untranslatable, match=message.replace("$", "\\$").replace("{", "\\{")):
        translate(app, {}, workdir="/w")


@pytest.mark.parametrize(
    ("word", "resource", "workers"),
    [
        ("cpu", Resource(cpu=6, gpu=2, memMB=1024), 6),
        ("gpu", Resource(cpu=6, gpu=2, memMB=1024), "gpu"),
        ("auto", Resource(cpu=6, gpu=2, memMB=1024), "gpu"),
        ("auto", Resource(cpu=6, gpu=0, memMB=1024), 6),
    ],
)
def test_nproc_per_node_counts_what_the_role_requests(word: str, resource: Resource, workers: int | str) -> None:
    spec = translate(role(f"--nproc-per-node={word}", "a.py", resource=resource), {}, workdir="/w")
    assert spec["topology"] == {"nodes": "1", "workers_per_node": workers}


@pytest.mark.parametrize(
    ("words", "passes"),
    [
        (["-m", "torch.distributed.launch", "a.py"], True),
        (["-m", "torch.distributed.launch", "--use_env", "a.py"], False),
        (["-m", "torch.distributed.run", "a.py"], False),
        (["-m", "trainer.elastic.elasticrun", "--pass-local-rank", "a.py"], True),
    ],
)
def test_local_rank_is_passed_as_the_launcher_does(words: list[str], passes: bool) -> None:
    spec = translate(role(*words, entrypoint="python"), {}, workdir="/w")
    assert parse_spec(spec).run.pass_local_rank == passes


def test_torchx_rendezvous_flags_are_dropped() -> None:
    text = json.dumps(translate(dist.ddp(script="a.py", j="2x2", rdzv_port=29511), {}, workdir="/w"))
    assert not any(word in text for word in ("rdzv", "29511", "TORCHX", "${", "torchrun"))
