"""What torchx gets of a plan: a golden file, and none of the job's own words."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from orchestrator.backends.torchx.render import render_app, render_native, render_node_launch
from orchestrator.backends.torchx.site import TorchxSite
from orchestrator.domain.job.appdef import render_appdef
from orchestrator.domain.job.attempt import AttemptState
from orchestrator.domain.job.launch_plan import LaunchPlan, Site, build_plan
from tests.launch_text import check_launch
from tests.unit.situations import a_job, a_spec, an_attempt
from trainer.contract import env
from trainer.contract.node import HEAD, LOCAL

ROOT = Path("/shared/$runs")
SITE = Site(
    root=ROOT,
    python="python3",
    child="/shared/$runs/.agents/0f/trainer/elastic/child.py",
    rendezvous_host=HEAD,
    local_address=LOCAL,
    gpus_per_node=8,
    report_url=None,
    stop_timeout_s=10,
    log_limit_bytes=1024,
)
OWN = TorchxSite(
    scheduler="lsf", cfg={"queue": "normal"}, root=ROOT, service_root=ROOT, agent_dir=ROOT / ".agents" / "0f"
)
SPEC = {
    "run": {"script": "train.py", "args": ["--key=hush-1", "$HOME"], "env": {"KEY": "hush-2"}},
    "topology": {"nodes": "1:2", "workers_per_node": "gpu"},
    "resources": {"cpus": 12, "memory_gb": 64},
}


def plan_of(**spec: object) -> LaunchPlan:
    made = a_spec(**spec)
    return build_plan(a_job(spec=made), an_attempt(AttemptState.INTENDED, nodes=made.topology.nodes), SITE)


def test_the_request_equals_its_golden_file() -> None:
    plan = plan_of(**SPEC)
    check_launch("torchx_backend/elastic", plan, render_native(plan, OWN))


def test_the_app_contains_no_variable_argument_or_secret_of_the_job() -> None:
    plan = replace(plan_of(**SPEC), secrets={"TOKEN": "hush-3"})
    assert "hush" not in json.dumps(render_appdef(render_app(plan, OWN, claim="c")))
    launch = render_node_launch(plan, OWN, workdir="/w")
    assert (launch.environment["KEY"], launch.environment["TOKEN"], launch.command[-1]) == ("hush-2", "hush-3", "$HOME")
    assert env.REPLICA not in launch.environment
