"""Render a LaunchPlan as the AppDef for torchx's runner, and the document for the nodes. Pure."""

from __future__ import annotations

import dataclasses

import yaml
from torchx.specs import AppDef, macros

from orchestrator.backends.torchx.site import TorchxSite
from orchestrator.domain.job.appdef import escape, render_appdef
from orchestrator.domain.job.launch_plan import LaunchPlan
from orchestrator.domain.job.native_request import NativeRequest
from trainer.contract import layout
from trainer.contract.node import NodeLaunch

_CLAIM = "CLAIM"  # stands for the claim of a submission


def render_app(plan: LaunchPlan, site: TorchxSite, *, claim: str = _CLAIM) -> AppDef:
    """Return the plan's AppDef with a program that reads the command and the environment from the attempt's folder.

    So they pass through no shell, option or log of the scheduler.
    """
    (role,) = plan.app.roles
    attempt = layout.attempt_dir(site.root / plan.key.job_id, plan.key.number)
    started = dataclasses.replace(
        role,
        name=plan.app.name,
        image=plan.image or str(site.root),
        entrypoint=site.python,
        args=[
            *("-m", "trainer.elastic.node", escape(str(attempt))),
            *("--replica", macros.replica_id, "--of", str(role.num_replicas)),
            *("--claim", escape(claim), "--first-in", macros.rank0_env),
        ],
        env={"PYTHONPATH": escape(str(site.agent_dir))},
    )
    return AppDef(name=plan.app.name, roles=[started], metadata={})


def render_native(plan: LaunchPlan, site: TorchxSite) -> NativeRequest:
    request = {"scheduler": site.scheduler, "cfg": dict(site.cfg), "app": render_appdef(render_app(plan, site))}
    text = yaml.safe_dump(request, sort_keys=False, width=120, default_flow_style=False)
    return NativeRequest(kind=f"torchx:{site.scheduler}", text=text)


def render_node_launch(plan: LaunchPlan, site: TorchxSite, *, workdir: str) -> NodeLaunch:
    environment = plan.node_environment
    return NodeLaunch(command=plan.command, environment=environment, workdir=workdir, interface=site.interface)
