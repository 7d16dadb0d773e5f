"""The environment variables between service, agent and worker, and a worker's place in its group.

RANK, LOCAL_RANK, WORLD_SIZE and the like are torchrun's. Ours start with ORCHESTRATOR_, and none of them configures the
service.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

COPIES = 2  # of the state in memory: the older one stays whole until the newer one is

# Set by the backend for each replica's agent, and inherited by its workers.
JOB_ID = "ORCHESTRATOR_JOB_ID"
JOB_DIR = "ORCHESTRATOR_JOB_DIR"  # <root>/<job>, as this node sees it
ATTEMPT = "ORCHESTRATOR_ATTEMPT"  # 1, 2, ...
REPLICA = "ORCHESTRATOR_REPLICA"  # 0 .. nodes-1
CLAIM = "ORCHESTRATOR_CLAIM"  # the submission that this agent came from: one token for all its replicas
SNAPSHOT_DIR = "ORCHESTRATOR_SNAPSHOT_DIR"  # absent: <job>/snapshots
SNAPSHOT_INTERVAL = "ORCHESTRATOR_SNAPSHOT_INTERVAL"  # of a script under trainer.supervised; see config.parse_interval
SNAPSHOT_KEEP = "ORCHESTRATOR_SNAPSHOT_KEEP"
SNAPSHOT_KEEP_EVERY = "ORCHESTRATOR_SNAPSHOT_KEEP_EVERY"  # absent: no snapshot is kept forever
RESTORE_FROM = "ORCHESTRATOR_RESTORE_FROM"  # the name of one of the job's snapshots, or the path of another one
RETRY = "ORCHESTRATOR_RETRY"  # how many retries the owner requested; RESTORE_FROM applies once for each
INCARNATION = "ORCHESTRATOR_INCARNATION"  # the least number for this life of the replica's agent; absent: 1
NODE = "ORCHESTRATOR_NODE"  # the scheduler's name for this machine, if there is a scheduler: it can avoid this name
IMAGE = "ORCHESTRATOR_IMAGE"  # the container image of the job, if any
REPORT_URL = "ORCHESTRATOR_REPORT_URL"  # absent: the run directory is the only way to report
REPORT_TOKEN = "ORCHESTRATOR_REPORT_TOKEN"

ATTEMPT_HEADER = "Orchestrator-Attempt"  # of a report: `JOB/NUMBER`, the attempt that its token belongs to

# Set by the agent for its workers.
REPLICA_DIR = "ORCHESTRATOR_REPLICA_DIR"  # .../attempts/<n>/replica-<r>/<incarnation>
GENERATION = "ORCHESTRATOR_GENERATION"  # 1, 2, ... within the attempt
NOTICE_S = "ORCHESTRATOR_NOTICE_S"  # from the signal to stop until the kill; absent: unknown

# Open files of the agent, by local rank: "<pid>:<fd>,<fd>;<fd>,<fd>".
MEMORY = "ORCHESTRATOR_MEMORY"  # files in memory: two for copies of the state, and one for a survivor's state
MIRRORS = "ORCHESTRATOR_MIRRORS"  # files in memory: two for the copies of each rank of another node
REENTRY = "ORCHESTRATOR_REENTRY"  # two pipes: orders of the agent, and answers of the worker

COPY_SERVER = "ORCHESTRATOR_COPY_SERVER"  # where the agent serves MEMORY and MIRRORS; absent: no other node needs it
SURVIVORS = "ORCHESTRATOR_SURVIVORS"  # the number of ranks that keep their processes from the previous generation

# Only in the environment of the fork server, where /proc shows it.
FORK_SERVER = "ORCHESTRATOR_FORK_SERVER"


@dataclass(frozen=True)
class WorkerPlace:
    """A worker's place in its group and its job. Outside a job (`job_dir` is None) generation and attempt are 1."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    attempt: int
    generation: int
    job_id: str | None
    job_dir: str | None
    replica: int
    replica_dir: str | None
    snapshot_dir: str | None
    restore_from: str | None
    retry: int
    notice_s: float | None = None
    memory: tuple[tuple[str, ...], ...] = ()  # by local rank: paths of the agent's files in memory
    mirrors: tuple[tuple[str, ...], ...] = ()  # by the local rank on another node: paths of the agent's files
    copy_server: str = ""  # where other nodes read these files
    reentry: tuple[tuple[str, ...], ...] = ()  # by local rank: paths of the agent's pipes
    survivors: int = 0  # ranks that keep their processes from the previous generation

    @property
    def own_copies(self) -> tuple[str, ...]:
        """This rank's files for copies of its part of the state."""
        return self.memory[self.local_rank][:COPIES] if self.local_rank < len(self.memory) else ()

    @property
    def own_handover(self) -> str | None:
        """This rank's file for the whole state, when the rank survives its group."""
        return self.memory[self.local_rank][COPIES] if self.local_rank < len(self.memory) else None

    @property
    def own_reentry(self) -> tuple[str, ...]:
        return self.reentry[self.local_rank] if self.local_rank < len(self.reentry) else ()

    @property
    def is_on_one_node(self) -> bool:
        return self.world_size == self.local_world_size

    @property
    def can_outlive_group(self) -> bool:
        """Whether another rank of this node, or another node, could read the state of this rank in memory."""
        return bool(self.copy_server) or (self.is_on_one_node and self.world_size > 1)


def parse_place(environ: Mapping[str, str]) -> WorkerPlace:
    """Read a worker's place from its environment. Under plain torchrun the generation is its restart count + 1.

    Raises ValueError that names the variable when one is not a number.
    """
    restarts = _integer(environ, "TORCHELASTIC_RESTART_COUNT", 0)
    return WorkerPlace(
        rank=_integer(environ, "RANK", 0),
        local_rank=_integer(environ, "LOCAL_RANK", 0),
        world_size=_integer(environ, "WORLD_SIZE", 1),
        local_world_size=_integer(environ, "LOCAL_WORLD_SIZE", 1),
        attempt=_integer(environ, ATTEMPT, 1),
        generation=_integer(environ, GENERATION, restarts + 1),
        job_id=environ.get(JOB_ID) or None,
        job_dir=environ.get(JOB_DIR) or None,
        replica=_integer(environ, REPLICA, 0),
        replica_dir=environ.get(REPLICA_DIR) or None,
        snapshot_dir=environ.get(SNAPSHOT_DIR) or None,
        restore_from=environ.get(RESTORE_FROM) or None,
        retry=_integer(environ, RETRY, 0),
        notice_s=_seconds(environ, NOTICE_S),
        memory=_parse_files(environ.get(MEMORY, "")),
        mirrors=_parse_files(environ.get(MIRRORS, "")),
        copy_server=environ.get(COPY_SERVER, ""),
        reentry=_parse_files(environ.get(REENTRY, "")),
        survivors=_integer(environ, SURVIVORS, 0),
    )


def render_files(pid: int, files: Sequence[Sequence[int]]) -> str:
    """The value of MEMORY, MIRRORS and REENTRY: open files of the process `pid`, by local rank."""
    return f"{pid}:" + ";".join(",".join(map(str, own)) for own in files)


def _parse_files(text: str) -> tuple[tuple[str, ...], ...]:
    pid, _, files = text.partition(":")
    return tuple(tuple(f"/proc/{pid}/fd/{file}" for file in own.split(",")) for own in files.split(";") if own)


def _integer(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name)
    if text is None or text == "":
        return default
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"environment variable {name} is {text!r}, not a whole number") from None


def _seconds(environ: Mapping[str, str], name: str) -> float | None:
    text = environ.get(name)
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"environment variable {name} is {text!r}, not a number of seconds") from None
