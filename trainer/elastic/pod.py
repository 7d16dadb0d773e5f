"""`python -m trainer.elastic.pod LAUNCH`: what a pod's container runs. It starts the agent, stays, and tells its end.

LAUNCH is the document from the job's Secret. As the container's first process it reaps whatever is orphaned, hands on
the signals that the kubelet sends, prints what the workers write into their logs, and leaves the agent's exit record as
the container's termination message, which the cluster keeps also where nobody shares a file system.
`--unpack FOLDER` copies this package there instead: what an init container does for an image that lacks it. Standard
library only.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from trainer.contract import env, layout
from trainer.contract.exit_record import parse_exit_record
from trainer.contract.node import fill_in, find_port
from trainer.contract.pod import LastWords, PodLaunch, parse_pod_launch, render_last_words, render_pod_launch
from trainer.elastic.node import put_first
from trainer.elastic.records.files import read_document, say, write_document
from trainer.elastic.stop import DEFAULT_SIGNALS
from trainer.elastic.workers.echo import Echo
from trainer.elastic.workers.wakeup import Wakeup

# Set in the pod's template; the index by the Job controller (Kubernetes, "Indexed Job").
INDEX, HEAD_NAME, POD_IP, JOB_UID = (
    "JOB_COMPLETION_INDEX",
    "ORCHESTRATOR_HEAD",
    "ORCHESTRATOR_POD_IP",
    "ORCHESTRATOR_JOB_UID",
)
LAST_WORDS = "ORCHESTRATOR_LAST_WORDS"  # the file of the termination message
_LOOK_S, _ANSWER_S = 0.5, 2.0
_EXIT_USAGE = 2


@dataclass(frozen=True, kw_only=True)
class Place:
    """This pod. The claim is the Job: what an earlier one of the same attempt began is not gone on with."""

    replica: int
    claim: str
    address: str
    head: str  # the first pod's name


def main() -> None:
    if sys.argv[1:2] == ["--unpack"]:
        unpack(Path(sys.argv[2]))
        return
    try:
        place = read_place(os.environ)
        launch = parse_pod_launch(read_document(Path(sys.argv[1])) or {})
    except (IndexError, KeyError, ValueError) as error:
        say(f"this pod cannot start: {error!r}")
        sys.exit(_EXIT_USAGE)
    sys.exit(_run(place, launch))


def unpack(folder: Path) -> None:
    """Copy this package below the folder, so that it is there whole or not at all."""
    package = Path(__file__).parents[1]
    temporary = folder / f".{package.name}"
    shutil.rmtree(temporary, ignore_errors=True)
    shutil.copytree(package, temporary, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.rmtree(folder / package.name, ignore_errors=True)
    temporary.rename(folder / package.name)


def read_place(environ: Mapping[str, str]) -> Place:
    """Raises KeyError, ValueError outside a pod of ours."""
    return Place(
        replica=int(environ[INDEX]),
        claim=f"kubernetes-{environ[JOB_UID]}",
        address=environ[POD_IP],
        head=environ[HEAD_NAME],
    )


def _run(place: Place, launch: PodLaunch) -> int:
    watch, node = _Watch(), launch.node
    head = place.address if place.replica == 0 else find_head(place.head, find_port(node.command), watch)
    if head is None:
        return 143
    environment = {**os.environ, **_network(launch), **node.environment}
    environment |= {env.REPLICA: str(place.replica), env.CLAIM: place.claim, "PYTHONPATH": put_first(environment)}
    for name in (HEAD_NAME, POD_IP, JOB_UID):
        environment.pop(name, None)
    attempt_dir = layout.attempt_dir(Path(environment[env.JOB_DIR]), int(environment[env.ATTEMPT]))
    _write_launch(attempt_dir, launch)
    command = fill_in(node.host_command if place.replica == 0 else node.command, head=head, local=place.address)
    echo = Echo(
        layout.replica_dir(Path(environment[env.JOB_DIR]), int(environment[env.ATTEMPT]), place.replica), _print
    )
    echo.start()
    code = watch.run(command, environment, _workdir(node.workdir))
    echo.close()
    _tell(attempt_dir, place.replica, os.environ.get(LAST_WORDS))
    return code if code >= 0 else 128 - code


def find_head(name: str, port: int | None, watch: _Watch) -> str | None:
    """The address at which the first pod's rendezvous answers; None when this pod is told to go before.

    The name is unknown to DNS until that pod has its place, and for about a second more; the port answers when its
    image is there and its agent is up. Either may take hours in a full cluster: whoever looks at the whole attempt
    knows whether to wait, and this pod does not.
    """
    is_said = False
    while not watch.heard:
        found = _answering(name, port)
        if found is not None:
            return found
        if not is_said:
            say(f"waits for the first replica, {name}" + ("" if port is None else f", port {port}"))
            is_said = True
        time.sleep(_LOOK_S)
    return None


def _answering(name: str, port: int | None) -> str | None:
    """The first of the name's addresses where something listens; without a port the first one."""
    with suppress(OSError):
        for family, kind, protocol, _, address in socket.getaddrinfo(name, port, type=socket.SOCK_STREAM):
            with suppress(OSError), socket.socket(family, kind, protocol) as probe:
                probe.settimeout(_ANSWER_S)
                if port is not None:
                    probe.connect(address)
                return str(address[0])
    return None


class _Watch:
    """Runs the agent to its end: hands signals on, and reaps what other processes have left."""

    def __init__(self) -> None:
        self.heard: list[int] = []
        self._agent: subprocess.Popen[bytes] | None = None
        self._wakeup = Wakeup()
        for name in DEFAULT_SIGNALS:
            signal.signal(signal.Signals[name], self._hand_on)

    def run(self, command: Sequence[str], environment: Mapping[str, str], workdir: str) -> int:
        """Returns the agent's exit code, negative for a signal."""
        try:
            agent = subprocess.Popen(command, env=dict(environment), cwd=workdir)
        except OSError as error:
            say(f"cannot start the agent: {error}")
            return 127 if isinstance(error, FileNotFoundError) else 126
        self._agent = agent
        for number in self.heard[:1]:  # it came before there was an agent
            agent.send_signal(number)
        while agent.returncode is None:
            self._wakeup.wait()
            self._reap(agent)
        return agent.returncode

    @staticmethod
    def _reap(agent: subprocess.Popen[bytes]) -> None:
        while agent.returncode is None:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            if pid == agent.pid:
                agent.returncode = os.waitstatus_to_exitcode(status)

    def _hand_on(self, number: int, frame: FrameType | None) -> None:
        self.heard.append(number)
        if self._agent is not None and self._agent.returncode is None:
            os.kill(self._agent.pid, number)


def _print(lines: bytes) -> None:
    sys.stdout.buffer.write(lines)
    sys.stdout.buffer.flush()


def _network(launch: PodLaunch) -> dict[str, str]:
    interface = launch.node.interface
    return {} if interface is None else {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}


def _write_launch(attempt_dir: Path, launch: PodLaunch) -> None:
    """The policy, where the service does not share this folder and so could not put it there."""
    path = attempt_dir / layout.LAUNCH
    with suppress(OSError):  # without it the flags alone decide
        if not path.exists():
            attempt_dir.mkdir(parents=True, exist_ok=True)
            document = render_pod_launch(launch)["launch"]
            write_document(path, document if isinstance(document, dict) else {})


def _workdir(wanted: str) -> str:
    if Path(wanted).is_dir():
        return wanted
    say(f"there is no folder {wanted} in this container: starting in {Path.cwd()}")
    return str(Path.cwd())


def _tell(attempt_dir: Path, replica: int, path: str | None) -> None:
    """Leave the newest incarnation's exit record as the pod's last words."""
    folder = layout.replica_dir(attempt_dir.parent.parent, int(attempt_dir.name), replica)
    lives = sorted((int(each.name) for each in folder.glob("*") if each.name.isdecimal()), reverse=True)
    document = read_document(folder / str(lives[0]) / layout.EXIT) if lives else None
    if document is None or path is None:
        return
    with suppress(OSError, ValueError):
        words = LastWords(replica=replica, incarnation=lives[0], record=parse_exit_record(document))
        Path(path).write_text(render_last_words(words))


if __name__ == "__main__":
    main()
