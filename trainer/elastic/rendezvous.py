"""The rendezvous: building torch's handler, naming what went wrong with it, and numbering generations."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import cast

import torch.distributed.elastic.rendezvous.registry as rendezvous_registry
from torch._C._distributed_c10d import Store, TCPStore
from torch.distributed.elastic.agent.server.api import WorkerGroup
from torch.distributed.elastic.rendezvous import RendezvousConnectionError, RendezvousHandler, RendezvousParameters
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint
from torch.distributed.launcher.api import LaunchConfig

from trainer.contract.failure import Failure, FailureKind
from trainer.contract.fence import parse_term
from trainer.contract.layout import fence_dir, replica_dir
from trainer.elastic.record import Record

_DEFAULT_PORT = 29400  # torch's own for c10d
_PROBE_INTERVAL_S = 0.1
_GENERATION_KEY = "orchestrator/generation"
_STORE_KEY = "orchestrator/store"
_CLOCKS_MAY_DIFFER_S = 0.5
_SILENT_STORE_S = 30
# tcp(7): what was sent is acknowledged within this time, and when nothing is sent the kernel asks every five seconds.
_LOUD = {
    socket.TCP_USER_TIMEOUT: _SILENT_STORE_S * 1000,
    socket.TCP_KEEPIDLE: 5,
    socket.TCP_KEEPINTVL: 5,
    socket.TCP_KEEPCNT: _SILENT_STORE_S // 5,
}


class RendezvousFailed(Exception):
    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def build_handler(config: LaunchConfig) -> RendezvousHandler:
    """Build torch's handler, which binds or joins the store. Raises RendezvousFailed."""
    parameters = RendezvousParameters(
        backend=config.rdzv_backend,
        endpoint=config.rdzv_endpoint,
        run_id=config.run_id,
        min_nodes=config.min_nodes,
        max_nodes=config.max_nodes,
        local_addr=config.local_addr,
        **config.rdzv_configs,
    )
    await_store(config)
    try:
        handler = rendezvous_registry.get_rendezvous_handler(parameters)
    except RendezvousConnectionError as error:
        cause = str(error.__cause__ or error)
        raise RendezvousFailed(explain_connection_failure(config.rdzv_endpoint, cause)) from error
    if config.rdzv_backend == "c10d":
        give_up_on_silence(parse_rendezvous_endpoint(config.rdzv_endpoint, _DEFAULT_PORT)[1])
    return handler


def await_store(config: LaunchConfig) -> None:
    """Wait for another agent's store in Python: torch would wait out of reach of signals. Raises RendezvousFailed."""
    conf = {name: str(value).lower() for name, value in config.rdzv_configs.items()}
    tcp = config.rdzv_backend == "c10d" and conf.get("store_type", "tcp") == "tcp"
    if not tcp or conf.get("is_host") not in ("0", "false", "f", "no", "n"):
        return
    host, port = parse_rendezvous_endpoint(config.rdzv_endpoint, _DEFAULT_PORT)
    timeout_s = float(conf.get("read_timeout", "60"))
    deadline = time.monotonic() + timeout_s
    while (cause := _probe(host, port)) is not None:
        if time.monotonic() > deadline:
            cause = f"{cause}, waited {timeout_s:.0f} s"
            raise RendezvousFailed(explain_connection_failure(config.rdzv_endpoint, cause))
        time.sleep(_PROBE_INTERVAL_S)


def give_up_on_silence(port: int) -> None:
    """Let the connections to the store at `port` fail once its node has been silent for _SILENT_STORE_S.

    TCP by itself would try for a quarter of an hour, and torch would wait for it out of reach of signals. A store whose
    process merely stands still is not silent: its kernel answers.
    """
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError), socket.socket(fileno=os.dup(int(descriptor.name))) as connection:
            if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.getpeername()[1] == port:
                for option, value in _LOUD.items():
                    connection.setsockopt(socket.IPPROTO_TCP, option, value)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _probe(host: str, port: int) -> str | None:
    """None when the port answers, else why not."""
    try:
        socket.create_connection((host, port), timeout=1.0).close()
    except OSError as error:
        return str(error)
    return None


def explain_connection_failure(endpoint: str, cause: str) -> Failure:
    """What torch says when the store can be neither bound nor reached, in one line that names the port."""
    port = endpoint.rpartition(":")[2]
    if "EADDRINUSE" in cause:
        message = f"port {port} is already in use on this machine (rendezvous endpoint {endpoint}, EADDRINUSE)"
    else:
        message = f"no rendezvous store answers at {endpoint}: {' '.join(cause.split())[:200]}"
    return Failure(kind=FailureKind.RENDEZVOUS, message=message)


def agree_generation(handler: RendezvousHandler, group: WorkerGroup, restarts: int, known: Iterable[int]) -> int:
    """The generation that has just formed: the rendezvous round + 1, and above every generation already `known`.

    Group rank 0 chooses and publishes it in the round's own store, so that all agents agree and a requeued attempt,
    whose rounds begin again, goes on counting. A static rendezvous has no rounds: each agent counts its restarts.
    """
    if handler.get_backend() == "static":
        return max([restarts, *known]) + 1
    # torch declares both None until a rendezvous has filled them
    store, group_rank = cast(Store, group.store), cast(int, group.group_rank)
    if group_rank == 0:
        store.set(_GENERATION_KEY, str(max([_round(handler, restarts), *known]) + 1))
    return int(store.get(_GENERATION_KEY))


def open_workers_store(group: WorkerGroup, generation: int) -> Store | None:
    """Give the generation's workers a store of their own and put its address into `group`.

    Group rank 0's agent holds it, on a port that the system chose for it, and says where in the round's store: no key
    of another generation is in it, and no port can be taken between choice and use. Returns what must be kept alive.
    """
    # torch declares them None for good; a rendezvous has filled them
    round_store, address = cast(Store, group.store), cast(str, group.master_addr)
    key = f"{_STORE_KEY}/{generation}"
    server: TCPStore | None = None
    if cast(int, group.group_rank) == 0:
        server = TCPStore(address, 0, is_master=True, wait_for_workers=False)
        round_store.set(key, f"{server.port}")
    group.master_port = cast(None, int(round_store.get(key)))
    return server


def known_generations(record: Record) -> set[int]:
    """The generations of this attempt that left a trace: a term in the fence or a folder of this replica."""
    terms = (parse_term(path.name) for path in _listed(fence_dir(record.job_dir)))
    begun = {term.generation for term in terms if term is not None and term.attempt == record.attempt}
    folders = replica_dir(record.job_dir, record.attempt, record.replica).glob("*/g*")
    return begun | {int(folder.name[1:]) for folder in folders if folder.name[1:].isdecimal()}


def is_broken(handler: RendezvousHandler, group: WorkerGroup) -> bool:
    """Whether the round that `group` was formed in has lost a member, or this agent its own place in it.

    torch's agent looks for newcomers only: of a node whose heartbeats have ended it would wait for a collective to
    fail, and if the others have given up on this very agent it would train on beside them. So they have, too, when the
    store has not answered for twice as long as they wait for a heartbeat.
    """
    holder = getattr(handler, "_state_holder", None)
    state, heard_s = getattr(holder, "state", None), getattr(holder, "_last_sync_time", None)
    members, me = getattr(state, "participants", None), getattr(handler, "_this_node", None)
    if not isinstance(members, dict) or me is None or heard_s is None:
        return False  # a rendezvous of another kind; or torch keeps its state elsewhere now
    size = cast(int, group.group_world_size)
    lost_touch = size > 1 and time.monotonic() - heard_s > 2 * _heartbeats_count_s(handler)
    return lost_touch or me not in members or len(members) < size


def _heartbeats_count_s(handler: RendezvousHandler) -> float:
    """How old the newest heartbeat of a node may be that is not taken for lost."""
    settings = cast(DynamicRendezvousHandler, handler).settings
    return float(settings.keep_alive_interval.total_seconds() * settings.keep_alive_max_attempt)


def find_clock_ahead(handler: RendezvousHandler, now: datetime) -> str | None:
    """What to say when another node's clock is ahead of this one's; None when none is, or it cannot be told.

    Heartbeats carry the time of their sender. Of two clocks that differ one is ahead, and the other node sees it.
    """
    state = getattr(getattr(handler, "_state_holder", None), "state", None)
    heartbeats = getattr(state, "last_heartbeats", None)
    if not isinstance(heartbeats, dict) or not heartbeats:
        return None
    node, at = max(heartbeats.items(), key=lambda heartbeat: heartbeat[1])
    ahead_s = (at - now).total_seconds()
    if ahead_s < _CLOCKS_MAY_DIFFER_S:
        return None
    name = getattr(node, "addr", node)
    return f"the clock of {name} is {ahead_s:.1f} s ahead of this node's: from 5 s on they take each other for lost"


def _round(handler: RendezvousHandler, restarts: int) -> int:
    # torch keeps the round private (DynamicRendezvousHandler names its store after it); while this agent takes part it
    # cannot rise. Should a version move it, this agent's own count is the best guess and `known` keeps it rising.
    holder = getattr(handler, "_state_holder", None)
    number = getattr(getattr(holder, "state", None), "round", None)
    return number if isinstance(number, int) else restarts


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []
