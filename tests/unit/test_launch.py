"""Launch plans, compared with golden files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.run import get_args_parser
from torchx.specs import macros

from orchestrator.backends.local.render import render_processes
from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.group_flags import Group, render_group_flags
from orchestrator.domain.job.launch_plan import ELASTICRUN, LaunchPlan, Site, build_plan, restarts_left
from orchestrator.domain.job.worker_token import issue_worker_token
from tests.launch_text import check_launch
from tests.unit.situations import a_job, a_spec, an_attempt
from trainer.contract import env
from trainer.elastic.flags import parse_flags

SITE = Site(
    root=Path("/runs"),
    python="/opt/venv/bin/python",
    child="/opt/venv/lib/trainer/elastic/child.py",
    rendezvous_host="127.0.0.1",
    gpus_per_node=4,
    report_url=None,
    stop_timeout_s=10,
    log_limit_bytes=1024,
)
SPECS = {
    "trainer": {"run": {"trainer": {"steps": 300, "global_batch": 16}}, "topology": {"workers_per_node": 2}},
    "script-two-nodes": {
        "run": {"script": "train.py", "args": ["--name", "it's; $(rm -rf /)"], "workdir": "/home/u/my code"},
        "topology": {"nodes": "2", "workers_per_node": "gpu"},
        "snapshot": {"dir": "/snaps", "keep": 2},
    },
    "module-torchrun": {
        "run": {"module": "pkg.train", "args": ["-x"], "env": {"OMP_NUM_THREADS": "2"}, "workdir": "/w"},
        "launcher": "torchrun",
    },
    "command-elastic": {
        "run": {"command": ["bash", "-c", "echo $RANK"], "workdir": "/w"},
        "topology": {"nodes": "1:3"},
        "snapshot": {"dir": "s3://bucket/teams/nlp/"},
    },
}


def planned(name: str) -> LaunchPlan:
    spec = a_spec(**SPECS[name])
    restore_from = "step-00000040-a1-g1"
    attempt = an_attempt(AttemptState.INTENDED, nodes=spec.topology.nodes, restore_from=restore_from)
    return build_plan(a_job(spec=spec), attempt, SITE)


@pytest.mark.parametrize("name", SPECS)
def test_a_plan_matches_its_golden_file(name: str) -> None:
    plan = planned(name)
    check_launch(f"local/{name}", plan, render_processes(plan))


def test_two_attempts_share_neither_rendezvous_nor_port() -> None:
    first, second = an_attempt(), an_attempt(nonce="ffffffff", port=20001)
    plans = [build_plan(a_job(), attempt, SITE) for attempt in (first, second)]
    assert plans[0].rendezvous_id != plans[1].rendezvous_id
    assert plans[0].port != plans[1].port


def test_a_users_variable_replaces_a_default_but_not_the_launchers_own() -> None:
    plan = planned("module-torchrun")
    assert plan.shared_environment["OMP_NUM_THREADS"] == "2"
    assert plan.shared_environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"


def test_the_agent_gets_what_is_left_of_the_budget() -> None:
    assert restarts_left(a_job(spent={"application": 2})) == 1
    assert restarts_left(a_job(spent={"application": 9})) == 0


def test_how_many_snapshots_to_keep_reaches_the_trainer_and_a_script() -> None:
    snapshot = {"keep": 2, "keep_every": 50}
    config = a_spec(run={"trainer": {}}, snapshot=snapshot).trainer_config()
    assert config is not None
    assert (config.snapshot_keep, config.snapshot_keep_every) == (2, 50)
    own = a_job(spec=a_spec(run={"script": "train.py"}, snapshot=snapshot))
    environ = build_plan(own, an_attempt(), SITE).shared_environment
    assert (environ[env.SNAPSHOT_KEEP], environ[env.SNAPSHOT_KEEP_EVERY]) == ("2", "50")


@pytest.mark.parametrize("launcher", ["elasticrun", "torchrun"])
@pytest.mark.parametrize("target", [{"script": "train.py"}, {"module": "pkg.train"}])
def test_pass_local_rank_adds_the_local_rank_as_the_first_argument(target: dict[str, str], launcher: str) -> None:
    run = {**target, "args": ["--lr", "1"], "pass_local_rank": True}
    command = build_plan(a_job(spec=a_spec(run=run, launcher=launcher)), an_attempt(), SITE).command
    assert command[-4:] == (next(iter(target.values())), "--local-rank=${local_rank}", "--lr", "1")


@pytest.mark.parametrize("target", [{"trainer": {}}, {"command": ["python", "train.py"]}])
def test_pass_local_rank_needs_a_script_or_a_module(target: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="pass_local_rank applies to script and module"):
        a_spec(run={**target, "pass_local_rank": True})


def test_a_value_of_the_environment_can_contain_the_jobs_id() -> None:
    run = {"script": "a.py", "workdir": "/w", "env": {"RUN": "orchestrator://torchx/${app_id}", "OTHER": "${other}"}}
    job = a_job(spec=a_spec(run=run))
    environment = build_plan(job, an_attempt(), SITE).shared_environment
    assert environment["RUN"] == f"orchestrator://torchx/{job.id}"
    assert environment["OTHER"] == "${other}"


def test_agents_that_report_by_http_get_a_token_of_their_attempt() -> None:
    site = replace(SITE, report_url="http://127.0.0.1:8700/api/v1/reports", worker_key=b"key")
    attempt = an_attempt()
    token = build_plan(a_job(), attempt, site).shared_environment[env.REPORT_TOKEN]
    assert token == issue_worker_token(b"key", attempt.key, attempt.nonce)
    assert env.REPORT_TOKEN not in build_plan(a_job(), attempt, replace(site, report_url=None)).shared_environment
    assert env.REPORT_TOKEN not in build_plan(a_job(), attempt, replace(site, worker_key=None)).shared_environment
    assert "key" not in repr(replace(site, worker_key=b"the key itself"))


def test_no_rendering_of_a_plan_contains_its_secrets() -> None:
    plan = build_plan(a_job(), an_attempt(), SITE, {"KEY": "hunter2-hunter2"})
    assert plan.secrets == {"KEY": "hunter2-hunter2"}
    assert "hunter2" not in render_processes(plan).text + repr(plan) + str(plan.command) + str(plan.environment(0))


def test_torchx_fills_in_the_launch_as_the_plan_does() -> None:
    """Every scheduler of torchx replaces its macros like this. Dollar signs and macros in the spec stay as they are."""
    text = "$HOME ${replica_id} $$ ${app_id} ${local_rank} $(id) $"
    run = {"script": "a.py", "args": [text], "env": {"OWN": text.replace("${app_id}", "")}, "workdir": "/w"}
    plan = build_plan(a_job(spec=a_spec(run=run, topology={"nodes": 2})), an_attempt(nodes="2"), SITE)
    for replica in range(2):
        values = macros.Values(img_root="/img", app_id="app-1", replica_id=str(replica), rank0_env="FIRST")
        role = values.apply(plan.app.roles[0])
        assert (role.entrypoint, *role.args) == plan.command
        assert role.env == plan.environment(replica) == {**plan.shared_environment, env.REPLICA: str(replica)}
    assert plan.command[-1] == text
    assert plan.shared_environment["OWN"] == run["env"]["OWN"]


def test_only_elasticrun_takes_a_replica_back() -> None:
    found = {}
    for launcher in ("elasticrun", "torchrun"):
        spec = a_spec(
            run={"script": "a.py", "args": ["-m", ELASTICRUN], "workdir": "/w"},
            topology={"nodes": "1:2"},
            launcher=launcher,
        )
        found[launcher] = build_plan(a_job(spec=spec), an_attempt(nodes="1:2"), SITE).takes_back
    assert found == {"elasticrun": True, "torchrun": False}


def test_a_group_that_needs_all_its_nodes_takes_no_replica_back() -> None:
    assert not planned("script-two-nodes").takes_back


@pytest.mark.parametrize("launcher", ["elasticrun", "torchrun"])
@pytest.mark.parametrize("kind", ["script", "module", "command"])
@given(arguments=st.lists(st.from_regex(r"--?(n|log|m|max|r|t)[a-z-]{0,6}(=9)?|--", fullmatch=True), max_size=4))
def test_no_argument_of_a_program_is_taken_for_one_of_the_launcher(
    kind: str, launcher: str, arguments: list[str]
) -> None:
    program = {"command": ["./a", *arguments]} if kind == "command" else {kind: "pkg", "args": arguments}
    run: dict[str, object] = {"workdir": "/w", **program}
    plan = build_plan(a_job(spec=a_spec(run=run, launcher=launcher)), an_attempt(), SITE)
    flags = plan.command[plan.command.index("--nnodes=1") :]
    if launcher == "elasticrun":
        command = parse_flags(flags, {}).command
    else:
        command = tuple(get_args_parser().parse_args(flags).training_script_args)
    assert command[len(command) - len(arguments) :] == tuple(arguments)


def test_a_plan_says_how_many_nodes_it_needs_and_takes() -> None:
    plans = [planned(name) for name in ("script-two-nodes", "command-elastic")]
    assert [(plan.min_nodes, plan.max_nodes) for plan in plans] == [(2, 2), (1, 3)]


def test_a_group_without_an_endpoint_needs_no_rendezvous() -> None:
    group = Group(nodes="1", workers_per_node=2, endpoint=None, rendezvous_id="a", conf="b", max_restarts=3)
    flags = render_group_flags(group)
    assert "--standalone" in flags
    assert not [flag for flag in flags if flag.startswith("--rdzv")]


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        ({"script": "--nproc-per-node=3"}, r"script\n.*read as an option"),
        ({"module": "-x"}, r"module\n"),
        ({"command": ["--nproc-per-node=3", "sh"]}, r"command\n.*must not begin with '-'"),
    ],
)
def test_a_program_whose_name_begins_with_a_dash_is_refused(program: dict[str, object], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        a_spec(run={"workdir": "/w", **program})
