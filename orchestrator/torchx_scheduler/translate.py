"""Translate a torchx AppDef into a JobSpec document. Pure: the caller passes the working directory.

A role that starts torchrun (dist.ddp, dist.spmd) becomes a script, module or command of the elastic agent. Any other
single role becomes a command with one worker per replica. Rules:

- `memMB` of 1024 is the default of torchx's components, so it is ignored. Any other value is a limit.
- torchx's own image is also a default and is ignored.
- The larger of `max_retries` and torchrun's --max_restarts becomes the budget of application failures.
- Variables TORCHX_* are dropped, except those of configured trackers. TORCHX_JOB_ID contains ${app_id}, which the
  service replaces. LOGLEVEL is kept.
- --nproc_per_node=auto starts one worker per GPU of the role, or per CPU if the role has no GPU.
- ${img_root} is the working directory: the copy of the workspace, if there is one. Other macros are only known at
  launch, so they are refused; programs read the variables that hold the same values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from string import Template

from torchx.specs import AppDef, Role
from torchx.version import TORCHX_IMAGE

from orchestrator.domain.job.group_flags import ENVIRONMENT
from orchestrator.domain.specs.spec import make_name
from orchestrator.torchx_scheduler.torchrun import (
    Torchrun,
    Untranslatable,
    count_launcher_words,
    parse_torchrun,
    split_shell,
)

ROLE_LABEL, PARENT_LABEL = "torchx/role", "torchx/parent"
WORKDIR = "orchestrator/workdir"  # key in a role's metadata: the path of its workspace
TRACKERS = "TORCHX_TRACKERS"
_PARENT = "TORCHX_PARENT_RUN_ID"
_TRACKER_VARIABLES = re.compile(rf"^({TRACKERS}|{_PARENT}|TORCHX_JOB_ID|TORCHX_TRACKER_\w+_CONFIG)$")
_LONGEST_LABEL = 255
_DEFAULT_MEMORY_MB = 1024
_MACROS = {  # macro -> the variable that a worker reads instead
    "app_id": "the variable ORCHESTRATOR_JOB_ID",
    "replica_id": "the variable GROUP_RANK",
    "rank0_env": "the variables MASTER_ADDR and MASTER_PORT",
}
_MACRO = re.compile(rf"\$\{{({'|'.join(_MACROS)})\}}")


def translate(app: AppDef, options: Mapping[str, object], *, workdir: str) -> dict[str, object]:
    """Return the job's spec as a plain document. Raises Untranslatable."""
    if len(app.roles) != 1:
        names = ", ".join(role.name for role in app.roles) or "none"
        raise Untranslatable(
            f"the app has the roles {names}; this service runs apps of one role. Submit each role as an app"
        )
    role = app.roles[0]
    if role.mounts:
        raise Untranslatable(
            f"role {role.name} has mounts; this service mounts nothing. Use paths that exist on the nodes"
        )
    workdir = str(role.metadata.get(WORKDIR, workdir))
    torchrun = _torchrun(role)
    spec: dict[str, object] = {
        "name": make_name(app.name) or "job",
        "run": _run(role, torchrun, workdir),
        "topology": _topology(role, torchrun),
        "resources": _resources(role),
        "labels": {ROLE_LABEL: role.name, **_parent(role), **_labels(app)},
    }
    retries = max(role.max_retries, (torchrun.max_restarts if torchrun else None) or 0)
    if retries:
        spec["supervise"] = {"budgets": {"application": retries}}
    chosen = ("project", "cluster", "priority", "launcher")
    return spec | {name: options[name] for name in chosen if options.get(name) is not None}


def _torchrun(role: Role) -> Torchrun | None:
    words = [role.entrypoint, *role.args]
    if role.entrypoint.rpartition("/")[2] in ("bash", "sh") and len(role.args) == 2 and role.args[0] == "-c":
        script = role.args[1]
        words = split_shell(script) or []
        if not words and re.match(r"\s*(\S*/)?torchrun\s", script):
            raise Untranslatable(
                f"role {role.name} starts torchrun in a shell script that does more. Use torchrun and its arguments "
                "as entrypoint and args, or put the other steps into a separate script"
            )
    return parse_torchrun(words) if count_launcher_words(words) else None


def _run(role: Role, torchrun: Torchrun | None, workdir: str) -> dict[str, object]:
    def text(value: str, where: str) -> str:
        return _without_macros(value, where, workdir)

    run: dict[str, object] = {"workdir": workdir}
    if torchrun is None:
        words = [role.entrypoint, *role.args]
        run["command"] = [text(word, f"args of role {role.name}") for word in words]
    else:
        program = text(torchrun.program, f"the program of role {role.name}")
        args = [text(word, f"args of role {role.name}") for word in torchrun.args]
        run |= {"command": [program, *args]} if torchrun.kind == "command" else {torchrun.kind: program, "args": args}
        if torchrun.pass_local_rank:
            run["pass_local_rank"] = True
    ours = ENVIRONMENT.items()  # every attempt has these
    env = {
        name: value for name, value in role.env.items() if not name.startswith("TORCHX_") and (name, value) not in ours
    }
    if env or TRACKERS in role.env:
        kept = {name: text(value, f"env {name} of role {role.name}") for name, value in env.items()}
        run["env"] = kept | _tracking(role.env)
    if role.image and role.image != TORCHX_IMAGE:
        run["image"] = role.image
    return run


def _tracking(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that torchx's trackers read in a worker. Empty if no tracker is configured."""
    return {name: value for name, value in env.items() if _TRACKER_VARIABLES.match(name)} if TRACKERS in env else {}


def _parent(role: Role) -> dict[str, str]:
    """Return the label with the parent run, by which a tracker finds this job."""
    parent = role.env.get(_PARENT)
    return {} if parent is None else {PARENT_LABEL: parent[:_LONGEST_LABEL]}


def _without_macros(value: str, where: str, workdir: str) -> str:
    found = _MACRO.search(value)
    if found:
        instead = _MACROS[found[1]]
        raise Untranslatable(f"{where}: {found[0]} is only known at launch; use {instead} in the program")
    return Template(value).safe_substitute(img_root=workdir)


def _topology(role: Role, torchrun: Torchrun | None) -> dict[str, object]:
    if torchrun is not None:
        return {"nodes": torchrun.nodes, "workers_per_node": _workers(role, torchrun.workers_per_node)}
    low = role.min_replicas
    nodes = f"{low}:{role.num_replicas}" if low and low != role.num_replicas else str(role.num_replicas)
    return {"nodes": nodes, "workers_per_node": 1}


def _workers(role: Role, wanted: int | str) -> int | str:
    """Resolve auto and cpu by what the role requests. torchrun would count what it finds on the node."""
    if wanted == "auto":
        wanted = "gpu" if role.resource.gpu > 0 else "cpu"
    if wanted != "cpu":
        return wanted
    cpus: int = role.resource.cpu
    if cpus <= 0:
        raise Untranslatable(
            f"role {role.name} starts one worker per CPU but requests no CPUs. Set cpu in its resource, "
            "or a number in --nproc_per_node"
        )
    return cpus


def _resources(role: Role) -> dict[str, object]:
    resource = role.resource
    wanted: dict[str, object] = {}
    if resource.cpu > 0:
        wanted["cpus"] = resource.cpu
    if resource.gpu > 0:
        wanted["gpus"] = resource.gpu
    if resource.memMB > 0 and resource.memMB != _DEFAULT_MEMORY_MB:
        wanted["memory_gb"] = resource.memMB / 1024
    if resource.devices:
        wanted["extra"] = {name: str(count) for name, count in resource.devices.items()}
    return wanted


def _labels(app: AppDef) -> dict[str, str]:
    return {str(name): str(value) for name, value in app.metadata.items()}
