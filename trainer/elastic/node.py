"""`python -m trainer.elastic.node ATTEMPT_DIR`: run this node's agent, as one task of Slurm's srun.

It finds the replica of this node and the addresses of the nodes, forwards the scheduler's signals, and writes a
departure file when the agent ends: a killed agent writes no exit record, and Slurm does not report on single tasks. The
agent dies with this process. Standard library only.

Other schedulers, which torchx knows, name the replica and the variable with the first node in arguments:
`ATTEMPT_DIR --replica N --of N --claim TOKEN --first-in VARIABLE`.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import sys
import threading
import time
from argparse import ArgumentError, ArgumentParser
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from string import Template

from trainer.contract import env, layout
from trainer.contract.node import (
    ALIVE,
    ALIVE_EVERY_S,
    Departure,
    NodeLaunch,
    departure_name,
    fill_in,
    parse_node_launch,
    render_departure,
)
from trainer.elastic.child import die_with_parent
from trainer.elastic.forward import Forwarder
from trainer.elastic.records.files import read_document, say, write_document
from trainer.elastic.records.record import now

HEAD_ADDRESS = "ORCHESTRATOR_HEAD"  # set by the batch script: the first node's address
_SIOCGIFADDR = 0x8915  # netdevice(7)
_ELSEWHERE = "192.0.2.1"  # an address of no machine (RFC 5737)
_EXIT_USAGE = 2
EXIT_REFUSED = 3  # elasticrun: another submission holds the claim


@dataclass(frozen=True, kw_only=True)
class Task:
    """The task of this node. Two submissions of an attempt have different claims: on Slurm, they name the Slurm job."""

    replica: int
    node: str
    claim: str
    head: str


def main() -> None:
    try:
        attempt_dir = Path(sys.argv[1])
        task = read_arguments(attempt_dir, sys.argv[2:], os.environ) if sys.argv[2:] else read_task(os.environ)
        launch = parse_node_launch(read_document(attempt_dir / layout.NODE_LAUNCH) or {})
    except (IndexError, KeyError, ValueError, OSError) as error:
        say(f"this node cannot start: {error!r}")
        sys.exit(_EXIT_USAGE)
    if sys.argv[2:] and _has_departed(attempt_dir, task):
        say("the scheduler has started this app again; the service starts the next attempt")
        sys.exit(EXIT_REFUSED)
    sys.exit(_run(attempt_dir, task, launch))


def read_task(environ: Mapping[str, str]) -> Task:
    """Raises KeyError, ValueError outside a step of Slurm."""
    cluster = environ.get("SLURM_CLUSTER_NAME", "slurm")
    return Task(
        replica=int(environ["SLURM_PROCID"]),
        node=environ["SLURMD_NODENAME"],
        claim=f"slurm-{cluster}-{environ['SLURM_JOB_ID']}",
        head=environ[HEAD_ADDRESS],
    )


def read_arguments(attempt_dir: Path, arguments: Sequence[str], environ: Mapping[str, str]) -> Task:
    """From now on, what this process and the agent print goes to the agent's log. Raises ValueError, OSError.

    ValueError also if the scheduler names no first node.
    """
    parser = ArgumentParser(exit_on_error=False)
    for name, kind in (("replica", str), ("of", int), ("claim", str), ("first-in", str)):
        parser.add_argument(f"--{name}", type=kind, required=True)
    try:
        given = parser.parse_args(list(arguments))
    except ArgumentError as error:
        raise ValueError(str(error)) from error
    replica = int(Template(given.replica).safe_substitute(environ))  # AWS Batch gives the name of a variable
    threading.Thread(target=_show_life, args=(attempt_dir / f"{ALIVE}{replica}",), daemon=True).start()
    _write_to(layout.replica_dir(attempt_dir.parent.parent, int(attempt_dir.name), replica) / layout.AGENT_LOG)
    first = environ.get(given.first_in, "") if given.of > 1 else "localhost"
    if not first and replica == 0:  # AWS Batch tells only the other nodes
        first = socket.gethostname()
    if not first:
        raise ValueError(f"the scheduler names no first node: the variable {given.first_in} is not set")
    head = "127.0.0.1" if first == "localhost" else find_address(first)
    return Task(replica=replica, node=socket.gethostname(), claim=given.claim, head=head)


def find_address(name: str) -> str:
    """The address at which other nodes reach a node. On Debian, a node's own name resolves to 127.0.1.1."""
    with suppress(OSError):
        for _, _, _, _, address in socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM):
            if not str(address[0]).startswith("127."):
                return str(address[0])
        return find_local_address(_ELSEWHERE) or name
    return name


def _show_life(mark: Path) -> None:
    """Show the service that this node works, in case torchx loses the app."""
    while True:
        with suppress(OSError):  # a full disk
            mark.touch()
        time.sleep(ALIVE_EVERY_S)


def _write_to(log: Path) -> None:
    """Append what this process and the agent print to a file. Slurm does that by an option of srun."""
    log.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    os.close(descriptor)


def _has_departed(attempt_dir: Path, task: Task) -> bool:
    """Whether the agent of this submission has already ended: a scheduler has started the app again."""
    document = read_document(attempt_dir / departure_name(task.replica))
    return document is not None and document.get("claim") == task.claim


def _run(attempt_dir: Path, task: Task, launch: NodeLaunch) -> int:
    local = find_local_address(task.head) or task.head
    command = fill_in(launch.command, head=task.head, local=local)
    environment = {**os.environ, **_network(launch, task.head, local), **launch.environment}
    environment |= {env.REPLICA: str(task.replica), env.CLAIM: task.claim, env.NODE: task.node}
    environment["PYTHONPATH"] = put_first(environment)
    environment.pop(HEAD_ADDRESS, None)
    ended = Forwarder().run(command, environment, launch.workdir, partial(die_with_parent, os.getpid()))
    if ended == EXIT_REFUSED:
        return ended  # another submission runs this attempt, and writes the departures of its agents
    folder = layout.replica_dir(attempt_dir.parent.parent, int(attempt_dir.name), task.replica)
    departure = Departure(
        replica=task.replica,
        node=task.node,
        claim=task.claim,
        exit_code=ended,
        recorded=any(folder.glob(f"*/{layout.EXIT}")),
        at=now(),
    )
    with suppress(OSError):  # a full disk: the end is then known only from Slurm
        write_document(attempt_dir / departure_name(task.replica), render_departure(departure))
    return ended if ended >= 0 else 128 - ended


def put_first(environment: Mapping[str, str]) -> str:
    """PYTHONPATH with this package first, so that the job's own value cannot hide the agent."""
    ours, given = str(Path(__file__).parents[2]), environment.get("PYTHONPATH", "")
    return ":".join([ours, *(part for part in given.split(":") if part and part != ours)])


def find_local_address(head: str) -> str | None:
    """This node's address on the route to `head`. None if there is no route. Sends nothing."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(head, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return None


def _network(launch: NodeLaunch, head: str, local: str) -> dict[str, str]:
    """Variables that name the network interface of the workers' collectives.

    If none is configured and the host name does not resolve to `local`, the interface of `local` is used. Debian maps
    the host name to 127.0.1.1, and gloo listens at the address of the host name.
    """
    if launch.interface is not None:
        return {"GLOO_SOCKET_IFNAME": launch.interface, "NCCL_SOCKET_IFNAME": launch.interface}
    if head.startswith("127.") or _host_name_resolves_to(local):
        return {}
    found = find_interface(local)
    return {} if found is None else {"GLOO_SOCKET_IFNAME": found}


def _host_name_resolves_to(local: str) -> bool:
    try:
        found = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)}
    except OSError:
        return False
    return local in found


def find_interface(address: str) -> str | None:
    """The interface that has this IPv4 address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return None


if __name__ == "__main__":
    main()
