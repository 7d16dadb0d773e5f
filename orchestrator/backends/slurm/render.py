"""Render a LaunchPlan as sbatch's arguments, its script, and the document for the nodes. Pure.

The script contains no user input, and each option is a separate argument, so no value passes through a shell or the
parser of #SBATCH lines (sbatch(1)).
"""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass
from pathlib import Path

from orchestrator.backends.slurm.site import SlurmSite
from orchestrator.domain.job.launch_plan import LaunchPlan
from orchestrator.domain.job.native_request import NativeRequest
from orchestrator.domain.specs.spec import Placement
from trainer.contract import layout
from trainer.contract.node import NodeLaunch

EXIT_REQUEUED, EXIT_UNPREPARED = 75, 78  # sysexits.h: EX_TEMPFAIL, EX_CONFIG
_END = "END_OF_SCRIPT"
_COMMENT = "orchestrator:"


@dataclass(frozen=True, slots=True)
class Request:
    arguments: tuple[str, ...]  # for sbatch
    script: str


def render_request(plan: LaunchPlan, site: SlurmSite) -> Request:
    attempt_dir = layout.attempt_dir(Path(plan.job_dir), plan.key.number)
    return Request(
        arguments=(*_options(plan, site, attempt_dir), *site.options), script=_script(plan, site, attempt_dir)
    )


def render_native(request: Request) -> NativeRequest:
    """Render the request as an equivalent shell command."""
    end = _END
    while end in request.script:
        end += "_"
    words = " \\\n  ".join(["sbatch", *(shlex.quote(argument) for argument in request.arguments)])
    return NativeRequest(kind="sbatch", text=f"{words} <<'{end}'\n{request.script}{end}\n")


def render_node_launch(plan: LaunchPlan, site: SlurmSite, *, workdir: str) -> NodeLaunch:
    environment = plan.node_environment
    return NodeLaunch(command=plan.command, environment=environment, workdir=workdir, interface=site.interface)


def render_name(plan: LaunchPlan) -> str:
    """Return the job name by which Slurm finds the attempt."""
    return str(plan.key)


def effective_placement(plan: LaunchPlan, site: SlurmSite) -> Placement:
    """Merge the job's placement over the cluster's defaults."""
    neutral = Placement()
    given = {
        name: value
        for name in Placement.model_fields
        if (value := getattr(plan.placement, name)) != getattr(neutral, name)
    }
    options = {**site.defaults.options, **plan.placement.options}
    return site.defaults.model_copy(update={**given, "options": options})


def least_cpus(plan: LaunchPlan, site: SlurmSite) -> int:
    """Return how many CPUs a node needs for one replica. 0 if the job takes whole nodes and requests no CPUs."""
    whole = effective_placement(plan, site).exclusive and plan.resources.cpus is None
    return 0 if whole else _cpus(plan)


def render_exclude(plan: LaunchPlan, site: SlurmSite) -> str:
    """List the nodes to exclude: those that the owner excludes and those that the service avoids."""
    return ",".join(dict.fromkeys((*effective_placement(plan, site).exclude, *plan.excluded_nodes)))


def _options(plan: LaunchPlan, site: SlurmSite, attempt_dir: Path) -> list[str]:
    place = effective_placement(plan, site)
    elastic = plan.min_nodes != plan.max_nodes
    options = {
        "job-name": render_name(plan),
        "comment": _COMMENT + plan.rendezvous_id,
        "nodes": f"{plan.min_nodes}-{plan.max_nodes}" if elastic else str(plan.max_nodes),
        # With this option Slurm 22.05 allocates the minimum of a range, without it as many nodes as are free.
        "ntasks-per-node": None if elastic else "1",
        "cpus-per-task": str(cpus) if (cpus := least_cpus(plan, site)) else None,
        "mem": None if plan.resources.memory_gb is None else f"{math.ceil(plan.resources.memory_gb * 1024)}M",
        "gres": _gres(plan, site),
        "time": None if place.time_limit_s is None else str(max(1, math.ceil(place.time_limit_s / 60))),
        "signal": f"TERM@{site.notice_s}",
        "partition": place.partition,
        "account": place.account,
        "qos": place.qos,
        "reservation": place.reservation,
        "constraint": place.constraint,
        "nodelist": ",".join(place.nodelist),
        "exclude": render_exclude(plan, site),
        "dependency": place.dependency,
        "chdir": str(attempt_dir),
        "output": f"{attempt_dir}/slurm-%j.log",
        "open-mode": "append",
        "export": "NIL",
        **place.options,
    }
    flags = ["--parsable", "--no-requeue", *(["--no-kill"] if elastic else [])]
    flags += ["--exclusive"] if place.exclusive else []
    # An option without a value is a flag.
    bare = [f"--{name}" for name, value in place.options.items() if value == ""]
    return [*flags, *bare, *(f"--{name}={value}" for name, value in options.items() if value)]


def _cpus(plan: LaunchPlan) -> int:
    """Return the CPUs per node: the requested number, or one per worker."""
    return max(1, plan.workers_per_node if plan.resources.cpus is None else math.ceil(plan.resources.cpus))


def _gres(plan: LaunchPlan, site: SlurmSite) -> str:
    gpus = plan.resources.gpus or (plan.workers_per_node if site.gpus_per_node else 0)
    kind = "" if plan.resources.gpu_type is None else f":{plan.resources.gpu_type}"
    wanted = [f"gpu{kind}:{gpus}"] if gpus else []
    return ",".join([*wanted, *(f"{name}:{count}" for name, count in plan.resources.extra.items())])


def _script(plan: LaunchPlan, site: SlurmSite, attempt_dir: Path) -> str:
    parts = [
        "#!/bin/bash -l" if site.modules else "#!/bin/bash",
        f"# {render_name(plan)}",
        _START.format(attempt=shlex.quote(str(attempt_dir)), requeued=EXIT_REQUEUED, unprepared=EXIT_UNPREPARED),
        *(
            f"module load {shlex.quote(name)} || fail {shlex.quote(f'module {name} cannot be loaded')}"
            for name in site.modules
        ),
        *([site.prolog.rstrip("\n")] if site.prolog else []),
        *([] if plan.image else [_PYTHON.format(python=shlex.quote(site.python))]),
        _HEAD.format(interface=shlex.quote(site.interface or "")),
        f"export PYTHONPATH={shlex.quote(str(site.agent_dir))}${{PYTHONPATH:+:$PYTHONPATH}}",
        f"{_srun(plan, site)} &",
        _END_OF_STEP,
    ]
    return "\n".join(parts) + "\n"


def _srun(plan: LaunchPlan, site: SlurmSite) -> str:
    """Render the step. It does not inherit sbatch's --cpus-per-task (Slurm 22.05) and must outlive a failed task."""
    words = [
        "srun",
        "--ntasks-per-node=1",
        "--export=ALL",
        "--kill-on-bad-exit=0",
        "--wait=0",
        "--cpu-bind=none",
        "--mpi=none",
        "--input=none",
        "--open-mode=append",
    ]
    if plan.min_nodes != plan.max_nodes:
        words.append("--no-kill")
    if plan.image is not None:
        mounts = ",".join(f"{path}:{path}" for path in (site.root, *site.shared_paths))
        words += [f"--container-image={plan.image}", f"--container-mounts={mounts}"]
        words += site.container_options or ()
    program = [site.python, "-m", "trainer.elastic.node"]
    sized = '--nodes="$SLURM_JOB_NUM_NODES" ${SLURM_CPUS_PER_TASK:+--cpus-per-task="$SLURM_CPUS_PER_TASK"}'
    log = f'--output="$attempt"/replica-%t/{layout.AGENT_LOG}'
    return " ".join([shlex.join(words), sized, log, shlex.join(program), '"$attempt"'])


_START = """\
attempt={attempt}
fail() {{ echo "orchestrator: $1" >&2; exit {unprepared}; }}
if [ "${{SLURM_RESTART_COUNT:-0}}" != 0 ]; then
  echo "orchestrator: Slurm requeued this attempt; the service starts the next one" >&2
  exit {requeued}
fi
unset SLURM_EXPORT_ENV
export PATH  # bash does not export its own default, and srun would not find the Python (24.11)
# Record the allocation, because Slurm removes lost nodes from the job's node list.
echo "$SLURM_JOB_NUM_NODES $SLURM_JOB_NODELIST" >"$attempt/.allocation-$SLURM_JOB_ID" &&
  mv "$attempt/.allocation-$SLURM_JOB_ID" "$attempt/allocation-$SLURM_JOB_ID" ||
  fail "$attempt cannot be written on $SLURMD_NODENAME\""""

_PYTHON = """\
{python} -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
  fail "no Python 3.10 or newer: "{python}" on $SLURMD_NODENAME\""""

_HEAD = """\
head=127.0.0.1
if [ "$SLURM_JOB_NUM_NODES" -gt 1 ]; then
  interface={interface}
  if [ -n "$interface" ]; then
    head=$(ip -o -4 addr show dev "$interface" | awk '{{sub("/.*", "", $4); print $4; exit}}')
    [ -n "$head" ] || fail "$SLURMD_NODENAME has no address on interface $interface"
  else
    # On Debian, a machine's own name resolves to 127.0.1.1, which no other node can reach.
    head=$(getent ahostsv4 "$SLURMD_NODENAME" | awk '$1 !~ /^127\\./ {{print $1; exit}}')
    [ -n "$head" ] || head=$(hostname -I | awk '{{print $1}}')
    [ -n "$head" ] || head=$SLURMD_NODENAME
  fi
fi
export ORCHESTRATOR_HEAD=$head"""

_END_OF_STEP = """\
step=$!
# After a signal, wait for the step to end. Otherwise the agents have no time to write their exit records.
trap : TERM INT HUP USR1 USR2
while kill -0 "$step" 2>/dev/null; do wait "$step"; done
wait "$step"
exit $?"""
