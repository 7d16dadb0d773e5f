"""The component `elastic`: the command that the shell of each node runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from torchx.specs import AppDef, macros

from orchestrator.domain.job.group_flags import ENVIRONMENT
from orchestrator.torchx_scheduler import component
from tests.kubernetes.test_render import plan_of

FILE = str(Path(component.__file__))


def words_on(app: AppDef, replica: int, **environment: str) -> list[str]:
    """Return elasticrun's arguments on a node, after torchx has replaced its macros and the shell has run the line."""
    values = macros.Values(img_root="/img", app_id="app-1", replica_id=str(replica), rank0_env="FIRST")
    role = values.apply(app.roles[0])
    program = 'elasticrun() { for word in "$@"; do echo "$word"; done; }; ' + role.args[1]
    done = subprocess.run(["bash", "-c", program], env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    return done.stdout.splitlines()


def flag(words: list[str], name: str) -> str:
    (value,) = [word.removeprefix(f"{name}=") for word in words if word.startswith(f"{name}=")]
    return value


def test_only_replica_0_hosts_the_rendezvous() -> None:
    app = component.elastic("--lr", "a $HOME 'b'", script="train.py", j="1:2x4", rdzv_port=29511)
    first, second = (words_on(app, replica, FIRST="node7", SLURM_RESTART_COUNT="2") for replica in (0, 1))
    assert {flag(words, "--rdzv-endpoint") for words in (first, second)} == {"node7:29511"}
    assert flag(first, "--rdzv-conf").split(",")[0] == "is_host=1"
    assert flag(second, "--rdzv-conf").split(",")[0] == "is_host=0"
    assert flag(first, "--rdzv-id") == "app-1-2", "a requeued job has its own id"
    assert [flag(first, name) for name in ("--nnodes", "--nproc-per-node", "--max-restarts")] == ["1:2", "4", "3"]
    assert first[-4:] == ["--", "train.py", "--lr", "a $HOME 'b'"]
    assert (app.roles[0].min_replicas, app.roles[0].num_replicas) == (1, 2)


def test_the_launch_fails_if_the_scheduler_names_no_first_host() -> None:
    app = component.elastic(script="train.py", j="2x1")
    with pytest.raises(RuntimeError, match="names_no_first_host"):
        words_on(app, 0)


def test_one_node_starts_standalone() -> None:
    words = words_on(component.elastic(m="pkg.train", j="1x3"), 0)
    assert words[:3] == ["--nnodes=1", "--nproc-per-node=3", "--standalone"]
    assert words[-3:] == ["-m", "--", "pkg.train"]


def test_the_component_has_the_flags_and_variables_of_an_attempt() -> None:
    """Only what the service knows of its cluster differs: the endpoint, the id, and how long agents wait."""
    (role,) = component.elastic(script="train.py", j="1:2x4").roles
    plan = plan_of({"topology": {"nodes": "1:2", "workers_per_node": 4}}, {"nodes": "1:2"})
    words = words_on(AppDef(name="x", roles=[role]), 0, FIRST="node7")
    flags, own = ([word for word in each if word.startswith("--")] for each in (words, plan.command))
    assert [word.partition("=")[0] for word in flags] == [
        name for word in own if (name := word.partition("=")[0]) != "--local-addr"
    ]
    kept = {"last_call_timeout=1", "keep_alive_interval=1", "keep_alive_max_attempt=5"}
    assert all(kept <= {*flag(list(each), "--rdzv-conf").split(",")} for each in (words, plan.command))
    assert role.env == dict(ENVIRONMENT)
    assert ENVIRONMENT.items() <= plan.shared_environment.items()


def test_exactly_one_of_script_and_module_is_required() -> None:
    for given in ({}, {"script": "a.py", "m": "a"}):
        with pytest.raises(ValueError, match="give one of --script and -m"):
            component.elastic(**given)


def test_help_describes_every_argument(environment: dict[str, str], tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("torchx")
    command = [program, "run", "-s", "local_cwd", "--dryrun", f"{FILE}:elastic", "--help"]
    output = subprocess.check_output(command, env=environment, cwd=tmp_path, text=True)
    assert "without lost nodes" in output
    for name in ("max_restarts", "rdzv_port", "memMB", "1:2x4"):
        assert name in output
