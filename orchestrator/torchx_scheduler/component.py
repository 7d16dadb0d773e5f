"""A torchx component that renders this project's elastic launch for any other torchx scheduler.

    torchx run -s slurm orchestrator/torchx_scheduler/component.py:elastic -j 1:2x4 --script train.py   # by its file
    torchx run -s slurm orchestrator.torchx_scheduler.component.elastic -j 1:2x4 --script train.py      # the nightly

Compared with torchx's dist.ddp:

- It restarts workers in place.
- Only one agent binds the rendezvous port. If the port is in use, the launch fails instead of joining another job's
  store.
- It fails if the scheduler names no first host. dist.ddp would form one group per node.
- Each run of a requeued Slurm job has its own rendezvous id.

`elasticrun` must be installed on the nodes. torchx parses the source of a component and understands only annotations
from `typing`.
"""

# ruff: noqa: UP006, UP035, UP045
import shlex
from pathlib import Path
from typing import Dict, List, Optional

import torchx
from torchx import specs
from torchx.components.dist import parse_nnodes

from orchestrator.domain.job.group_flags import ENVIRONMENT, Group, render_group_flags

# torchx's template turns "$$" into "$". The shell of each node expands the result.
_ENDPOINT = f"$${{{specs.macros.rank0_env}:?names_no_first_host}}"
_CONF = f"is_host=$$(({specs.macros.replica_id}==0)),read_timeout=60"
_ID = f"{specs.macros.app_id}-$${{SLURM_RESTART_COUNT:-0}}"


def elastic(
    *script_args: str,
    script: Optional[str] = None,
    m: Optional[str] = None,
    image: str = torchx.IMAGE,
    name: str = "",
    h: Optional[str] = None,
    cpu: int = 2,
    gpu: int = 0,
    memMB: int = -1,
    j: str = "1x2",
    env: Optional[Dict[str, str]] = None,
    max_restarts: int = 3,
    max_retries: int = 0,
    rdzv_port: int = 29500,
    mounts: Optional[List[str]] = None,
) -> specs.AppDef:
    """Run a training script on elastic nodes. Dead workers restart, and training continues without lost nodes.

    Args:
        script_args: arguments of the script or module
        script: the script to run
        m: the module to run, in place of a script
        image: the image or the folder in which the scheduler starts the program
        name: the app's name; default: the name of the script or the module
        h: a named resource, in place of cpu, gpu and memMB
        cpu: CPUs of each node
        gpu: GPUs of each node
        memMB: memory of each node; -1 means the cluster's default
        j: [{min nodes}:]{nodes}x{workers per node}, for example 1:2x4
        env: variables of the workers
        max_restarts: how many failures of workers are repaired by a restart in place
        max_retries: how many times the scheduler may start the whole job again
        rdzv_port: the rendezvous port on the first node
        mounts: as for torchx's other components
    """
    if (script is None) == (m is None):
        raise ValueError("give one of --script and -m")
    least, most, workers, nodes = parse_nnodes(j)
    group = Group(
        nodes=nodes,
        workers_per_node=workers,
        endpoint=None if most == 1 else f"{_ENDPOINT}:{rdzv_port}",
        rendezvous_id=_ID,
        conf=_CONF,
        max_restarts=max_restarts,
    )
    program = ["--", script] if script is not None else ["-m", "--", str(m)]
    title = Path(script).stem if script is not None else str(m).rpartition(".")[2]
    return specs.AppDef(
        name=name.strip("/") or title,
        roles=[
            specs.Role(
                name=title,
                image=image,
                min_replicas=least,
                num_replicas=most,
                entrypoint="bash",
                args=["-c", " ".join(["elasticrun", *render_group_flags(group), shlex.join([*program, *script_args])])],
                env={**ENVIRONMENT, **(env or {})},
                port_map={"c10d": rdzv_port},
                resource=specs.resource(cpu=cpu, gpu=gpu, memMB=memMB, h=h),
                max_retries=max_retries,
                mounts=specs.parse_mounts(mounts) if mounts else [],
            )
        ],
    )
