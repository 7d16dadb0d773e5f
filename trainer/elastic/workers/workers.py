"""The environment of a generation's workers: their store, their ranks, and torchrun's other variables.

Each generation's workers have their own store, so that it holds no key of another generation. The agent of group rank 0
serves it, with two exceptions. A single rank serves its own. If every node has one worker of a script, worker 0 serves
it, because such a worker may start workers itself (torch.multiprocessing.spawn), and those must be able to serve it.
Then torch waits about half a second when a worker looks for the store before it exists.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import Template

from torch.distributed import TCPStore

from trainer.elastic.copies.buddies import Buddies
from trainer.elastic.flags import Flags
from trainer.elastic.memory_files import MemoryFiles
from trainer.elastic.rendezvous.failed import RendezvousFailed
from trainer.elastic.rendezvous.join import Rendezvous
from trainer.elastic.rendezvous.round_document import Round, WorkersStore

_REACHED_WITHIN_S = 10.0


@dataclass(frozen=True, kw_only=True)
class AgentPlace:
    """This agent's part of a group: its own rank, and the ranks of its workers by local rank."""

    group: Round
    group_rank: int
    ranks: Sequence[int]
    world_size: int

    @property
    def nodes(self) -> int:
        return len(self.group.members)


def find_place(group: Round, node: str) -> AgentPlace:
    """The place of `node`. Ranks are consecutive, from the first member's workers to the last member's."""
    group_rank = next(rank for rank, member in enumerate(group.members) if member.node == node)
    first = sum(member.workers for member in group.members[:group_rank])
    return AgentPlace(
        group=group,
        group_rank=group_rank,
        ranks=range(first, first + group.members[group_rank].workers),
        world_size=sum(member.workers for member in group.members),
    )


class WorkersStoreHost:
    """Opens the workers' store. A store that the agent serves lives until the next `arrange` or `close`."""

    def __init__(self, address: str | None = None, port: int = 0, *, may_spawn: bool = True) -> None:
        """`address` defaults to the first node's. With `port` 0, the system chooses one.

        `may_spawn`: a worker may start workers itself.
        """
        self._address, self._port, self._may_spawn = address, port, may_spawn
        self._kept: TCPStore | socket.socket | None = None

    def arrange(self, place: AgentPlace, rendezvous: Rendezvous) -> WorkersStore | None:
        """On group rank 0 open the store and publish it; elsewhere wait for it. None if the group changes before that.

        Raises RendezvousFailed, and RuntimeError as TCPStore does.
        """
        if place.group_rank != 0:
            return rendezvous.await_store()
        self.close()
        address = self._address or place.group.members[0].address
        has_several = any(member.workers > 1 for member in place.group.members)
        by_agent = has_several or (place.nodes > 1 and not self._may_spawn)
        if by_agent:
            if not self._port:  # a port that the user names may be the only one that is forwarded
                _require_reachable(address)
            self._kept = TCPStore(address, self._port, is_master=True, wait_for_workers=False)
            port = self._kept.port
        elif self._port:
            port = self._port
        else:
            self._kept, port = _reserve()
        store = WorkersStore(address=address, port=port, by_agent=by_agent)
        rendezvous.publish_store(store)
        return store

    def close(self) -> None:
        if isinstance(self._kept, socket.socket):
            self._kept.close()
        self._kept = None


@dataclass(frozen=True, kw_only=True)
class Membership:
    """An agent's membership in a group: its name, its rendezvous, the store of the workers, and its memory."""

    node: str
    rendezvous: Rendezvous
    store_host: WorkersStoreHost
    memory: MemoryFiles
    buddies: Buddies | None = None  # None: no group has several nodes


def _require_reachable(address: str) -> None:
    """Raises RendezvousFailed if this node does not reach itself at the address.

    Torch would try it for minutes, and no signal would end that.
    """
    listener, port = _reserve()
    with listener:
        listener.listen(1)
        try:
            socket.create_connection((address, port), timeout=_REACHED_WITHIN_S).close()
        except (OSError, UnicodeError) as error:
            raise RendezvousFailed(f"this node does not reach its own address {address}: {error}") from error


def _reserve() -> tuple[socket.socket, int]:
    """Reserve a port until the socket is closed. A store can listen on it meanwhile (SO_REUSEADDR)."""
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    kept = socket.socket(family)
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        kept.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    kept.bind(("", 0))
    return kept, int(kept.getsockname()[1])


def render_environment(
    place: AgentPlace, local_rank: int, store: WorkersStore, flags: Flags, *, restarts: int, max_restarts: int
) -> dict[str, str]:
    """torchrun's variables for one worker (docs of torch.distributed.run, "Environment Variables")."""
    rank, world_size = str(place.ranks[local_rank]), str(place.world_size)
    return {
        "LOCAL_RANK": str(local_rank),
        "RANK": rank,
        "ROLE_RANK": rank,
        "ROLE_NAME": flags.role,
        "LOCAL_WORLD_SIZE": str(len(place.ranks)),
        "WORLD_SIZE": world_size,
        "ROLE_WORLD_SIZE": world_size,
        "GROUP_RANK": str(place.group_rank),
        "GROUP_WORLD_SIZE": str(place.nodes),
        "MASTER_ADDR": store.address,
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_RESTART_COUNT": str(restarts),
        "TORCHELASTIC_MAX_RESTARTS": str(max(max_restarts, restarts)),
        "TORCHELASTIC_RUN_ID": flags.run_id,
        "TORCHELASTIC_USE_AGENT_STORE": str(store.by_agent),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }


def show_own_device(environ: Mapping[str, str], local_rank: int) -> dict[str, str]:
    """torchrun's --virtual-local-rank: the worker sees only its own device, as number 0. Raises ValueError."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    devices = [name.strip() for name in visible.split(",")] if visible else None
    if devices is not None and local_rank >= len(devices):
        raise ValueError(f"local rank {local_rank} has no device in CUDA_VISIBLE_DEVICES={visible}")
    return {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": str(local_rank) if devices is None else devices[local_rank]}


def substitute(command: Sequence[str], local_rank: int) -> list[str]:
    """The command of one worker, with `${local_rank}` replaced as torchrun does."""
    return [Template(part).safe_substitute(local_rank=local_rank) for part in command]
