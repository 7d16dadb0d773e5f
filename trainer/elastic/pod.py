"""`python -m trainer.elastic.pod LAUNCH`: run the agent as a pod's container.

LAUNCH is the document from the job's Secret. As the container's first process it reaps orphans, forwards the kubelet's
signals, prints the workers' logs, and writes the agent's exit record to the container's termination message. The
service can read that message from the cluster without a shared file system.

`--unpack FOLDER` only copies this package to the folder. An init container runs it for images that lack the package.
Standard library only.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trainer.contract import env, layout
from trainer.contract.exit_record import parse_exit_record
from trainer.contract.node import fill_in, find_port
from trainer.contract.pod import LastWords, PodLaunch, parse_pod_launch, render_last_words, render_pod_launch
from trainer.elastic.forward import Forwarder
from trainer.elastic.node import put_first
from trainer.elastic.records.files import read_document, say, write_document
from trainer.elastic.rendezvous.epochs import Epochs
from trainer.elastic.workers.echo import Echo

# Set in the pod's template, except the index, which the Job controller sets (Kubernetes, "Indexed Job").
INDEX, HEAD_NAME, POD_IP, JOB_UID = (
    "JOB_COMPLETION_INDEX",
    "ORCHESTRATOR_HEAD",
    "ORCHESTRATOR_POD_IP",
    "ORCHESTRATOR_JOB_UID",
)
# How many earlier pods of this index ended, by the Job controller's annotations. Empty where it replaces none.
FAILURES, DISRUPTIONS = "ORCHESTRATOR_POD_FAILURES", "ORCHESTRATOR_POD_DISRUPTIONS"
LAST_WORDS = "ORCHESTRATOR_LAST_WORDS"  # the file of the termination message
_LOOK_S, _ANSWER_S = 0.5, 2.0
_EXIT_USAGE = 2


@dataclass(frozen=True, kw_only=True)
class Pod:
    """This pod. The claim is the Job's UID, so a new Job for the same attempt cannot continue an earlier one."""

    replica: int
    claim: str
    address: str
    head: str  # the first pod's name
    incarnation: int  # greater than that of every earlier pod of this index


def main() -> None:
    if sys.argv[1:2] == ["--unpack"]:
        unpack(Path(sys.argv[2]))
        return
    try:
        pod = read_pod(os.environ)
        launch = parse_pod_launch(read_document(Path(sys.argv[1])) or {})
    except (IndexError, KeyError, ValueError) as error:
        say(f"this pod cannot start: {error!r}")
        sys.exit(_EXIT_USAGE)
    sys.exit(_run(pod, launch))


def unpack(folder: Path) -> None:
    """Copy this package into the folder, completely or not at all."""
    package = Path(__file__).parents[1]
    temporary = folder / f".{package.name}"
    shutil.rmtree(temporary, ignore_errors=True)
    shutil.copytree(package, temporary, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.rmtree(folder / package.name, ignore_errors=True)
    temporary.rename(folder / package.name)


def read_pod(environ: Mapping[str, str]) -> Pod:
    """Raises KeyError or ValueError if a variable of the pod's template is missing or invalid."""
    return Pod(
        replica=int(environ[INDEX]),
        claim=f"kubernetes-{environ[JOB_UID]}",
        address=environ[POD_IP],
        head=environ[HEAD_NAME],
        incarnation=1 + sum(int(environ.get(name) or 0) for name in (FAILURES, DISRUPTIONS)),
    )


def _run(pod: Pod, launch: PodLaunch) -> int:
    forwarder, node = Forwarder(), launch.node
    environment = {**os.environ, **_network(launch), **node.environment}
    attempt_dir = layout.attempt_dir(Path(environment[env.JOB_DIR]), int(environment[env.ATTEMPT]))
    port = find_port(node.command)
    if pod.replica == 0 and pod.incarnation > 1 and Epochs(attempt_dir).newest() is None:
        # Its predecessor served the group's store, and this pod cannot learn which store or generation followed.
        say(f"this pod replaces the first one and finds no rendezvous store in {attempt_dir}: it cannot join the group")
        return 1
    head = pod.address if pod.replica == 0 else find_head(pod.head, port, Epochs(attempt_dir), forwarder)
    if head is None:
        return 143
    environment |= {env.REPLICA: str(pod.replica), env.CLAIM: pod.claim, "PYTHONPATH": put_first(environment)}
    environment[env.INCARNATION] = str(pod.incarnation)
    for name in (HEAD_NAME, POD_IP, JOB_UID, FAILURES, DISRUPTIONS):
        environment.pop(name, None)
    _write_launch(attempt_dir, launch)
    command = fill_in(node.command, head=head, local=pod.address)
    echo = Echo(layout.replica_dir(Path(environment[env.JOB_DIR]), int(environment[env.ATTEMPT]), pod.replica), _print)
    echo.start()
    code = forwarder.run(command, environment, _workdir(node.workdir))
    echo.close()
    _write_termination_message(attempt_dir, pod.replica, os.environ.get(LAST_WORDS))
    return code if code >= 0 else 128 - code


def find_head(name: str, port: int | None, epochs: Epochs, forwarder: Forwarder) -> str | None:
    """Wait for the first pod's rendezvous, or for a later store, and return its address.

    None if a signal stops this pod first.

    DNS resolves the name about a second after that pod is scheduled. The port answers once its image is pulled and its
    agent runs. Either can take hours in a full cluster, so there is no timeout. The service sees the whole attempt
    and decides how long to wait.
    """
    has_logged = False
    while not forwarder.received:
        newest = epochs.newest()
        if newest is not None and newest[1].closed:
            return name  # the agent says why it cannot join
        where = (name, port) if newest is None else (newest[1].address, newest[1].port)
        found = _answering(*where)
        if found is not None:
            return found
        if not has_logged:
            say(f"waiting for the first replica, {name}" + ("" if port is None else f", port {port}"))
            has_logged = True
        time.sleep(_LOOK_S)
    return None


def _answering(name: str, port: int | None) -> str | None:
    """The first address of the name at which the port accepts a connection; without a port, the first address."""
    with suppress(OSError):
        for family, kind, protocol, _, address in socket.getaddrinfo(name, port, type=socket.SOCK_STREAM):
            with suppress(OSError), socket.socket(family, kind, protocol) as probe:
                probe.settimeout(_ANSWER_S)
                if port is not None:
                    probe.connect(address)
                return str(address[0])
    return None


def _print(lines: bytes) -> None:
    sys.stdout.buffer.write(lines)
    sys.stdout.buffer.flush()


def _network(launch: PodLaunch) -> dict[str, str]:
    interface = launch.node.interface
    return {} if interface is None else {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}


def _write_launch(attempt_dir: Path, launch: PodLaunch) -> None:
    """Write launch.json if the service could not, because it does not share this folder."""
    path = attempt_dir / layout.LAUNCH
    with suppress(OSError):  # without it only the flags apply
        if not path.exists():
            attempt_dir.mkdir(parents=True, exist_ok=True)
            document = render_pod_launch(launch)["launch"]
            write_document(path, document if isinstance(document, dict) else {})


def _workdir(wanted: str) -> str:
    if Path(wanted).is_dir():
        return wanted
    say(f"this container has no folder {wanted}: starting in {Path.cwd()}")
    return str(Path.cwd())


def _write_termination_message(attempt_dir: Path, replica: int, path: str | None) -> None:
    """Write the newest incarnation's exit record to the termination message."""
    folder = layout.replica_dir(attempt_dir.parent.parent, int(attempt_dir.name), replica)
    incarnations = sorted((int(each.name) for each in folder.glob("*") if each.name.isdecimal()), reverse=True)
    document = read_document(folder / str(incarnations[0]) / layout.EXIT) if incarnations else None
    if document is None or path is None:
        return
    with suppress(OSError, ValueError):
        message = LastWords(replica=replica, incarnation=incarnations[0], record=parse_exit_record(document))
        Path(path).write_text(render_last_words(message))


if __name__ == "__main__":
    main()
