"""The flags and variables with which launchers form a group, for attempts and for our torchx component. Pure.

These rendezvous settings make a torch group reliable, under elasticrun and under plain torchrun:

* Only replica 0 binds the first store. Each launcher decides this from its replica number, unless `is_host` is given.
  If the port is in use, replica 0 fails within two seconds instead of joining another job's store
  (torch/distributed/elastic/rendezvous/c10d_rendezvous_backend.py).
* TORCH_DISABLE_SHARE_RDZV_TCP_STORE: workers get a fresh store after each restart. With a shared store, a
  restarted rank may read the addresses of the dead group (pytorch issue 135712).
* A short last call and keep-alive: the survivors of a lost node form a new group within seconds. Five missed
  heartbeats are allowed.
* `join_timeout` depends on the cluster: where nodes start one by one, the first agents wait for the last.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

ENVIRONMENT: Mapping[str, str] = {
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
}
_CONF = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=5"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """`nodes` is a number or `min:max`. Texts may contain macros of torchx and, in the component, shell expressions."""

    nodes: str
    workers_per_node: int
    endpoint: str | None  # host:port of the rendezvous; None: one node that needs none
    rendezvous_id: str
    conf: str  # settings of the rendezvous besides those that every group has
    max_restarts: int
    local_address: str | None = None  # where other nodes reach this one; None: the launcher finds out


def render_group_flags(group: Group) -> tuple[str, ...]:
    """Return the flags of torchrun and elasticrun (https://pytorch.org/docs/stable/elastic/run.html)."""
    return (
        f"--nnodes={group.nodes}",
        f"--nproc-per-node={group.workers_per_node}",
        *_render_rendezvous(group),
        f"--max-restarts={group.max_restarts}",
        "--monitor-interval=0.1",
    )


def _render_rendezvous(group: Group) -> tuple[str, ...]:
    if group.endpoint is None:
        return ("--standalone",)
    return (
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={group.endpoint}",
        f"--rdzv-id={group.rendezvous_id}",
        f"--rdzv-conf={group.conf},{_CONF}",
        *(() if group.local_address is None else (f"--local-addr={group.local_address}",)),
    )
