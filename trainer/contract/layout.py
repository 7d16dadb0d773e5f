"""Names inside a job's run directory. Pure: paths are built, never touched.

<root>/<job>/
  fence/a00002-g0001.json                one file per term, exclusive-create; see fence.py
  cache/                                 what compilers keep: inductor/ and triton/
  snapshots/step-00000120-a2-g1/         {.metadata, *.distcp, MANIFEST.json}; see manifest.py
  attempts/2/                            claim  launch.json  desired.json  beginning-g1.json  chaos-7  store-1
                                         finished-1-<node>
    replica-0/1/                         agent.json  exit.json  events.jsonl  progress.jsonl  resources.jsonl  agent.log
      g1/local-0/                        log  log.1  error.json  stacks.txt  profile.json.gz
"""

from __future__ import annotations

from pathlib import Path

CLAIM = "claim"  # text: the ORCHESTRATOR_CLAIM token of the submission that owns the attempt
LAUNCH = "launch.json"
DESIRED = "desired.json"
STORE = "store-"  # <epoch> in attempts/<n>/: which agent serves the rendezvous store, and for whom; see epochs.py
FINISHED = "finished-"  # <generation>-<node> in attempts/<n>/: all workers of the node succeeded; see epochs.py
DEPARTED = "departed-"  # <replica>.json in attempts/<n>/: how an agent ended, by the process that started it
NODE_LAUNCH = "node.json"  # in attempts/<n>/, mode 0600: what each node starts, if a scheduler starts it
AGENT = "agent.json"
EXIT = "exit.json"
EVENTS = "events.jsonl"
PROGRESS = "progress.jsonl"
RESOURCES = "resources.jsonl"  # samples of what the ranks use, thinned as it grows; see resource_sample.py
AGENT_LOG = "agent.log"  # in replica-<r>/: what the agent itself printed, all incarnations
WORKER_LOG = "log"
ERROR = "error.json"
PROFILE = "profile.json.gz"  # a trace for chrome://tracing or Perfetto, of the configured steps
STACKS = "stacks.txt"  # the worker's Python stacks, on request and before it was killed
MANIFEST = "MANIFEST.json"
FULL_DISK = "full-disk-"  # <rank> in an incarnation's folder: the rank's next write of a snapshot fails


def attempt_dir(job_dir: Path, attempt: int) -> Path:
    return job_dir / f"attempts/{attempt}"


def replica_dir(job_dir: Path, attempt: int, replica: int) -> Path:
    """The folder of one replica; each incarnation of its agent has a numbered folder below it."""
    return attempt_dir(job_dir, attempt) / f"replica-{replica}"


def worker_dir(incarnation_dir: Path, generation: int, local_rank: int) -> Path:
    return incarnation_dir / f"g{generation}/local-{local_rank}"


def beginning_file(job_dir: Path, attempt: int, generation: int) -> Path:
    """Where rank 0 of a user's own script publishes the snapshot that all ranks continue from."""
    return attempt_dir(job_dir, attempt) / f"beginning-g{generation}.json"


def chaos_file(attempt_dir: Path, number: int, replica: int | None = None) -> Path:
    """The claim of a requested fault. The agent that creates it injects the fault. `replica`: every agent does."""
    return attempt_dir / (f"chaos-{number}" if replica is None else f"chaos-{number}-r{replica}")


def fence_dir(job_dir: Path) -> Path:
    return job_dir / "fence"


def cache_dir(job_dir: Path) -> Path:
    return job_dir / "cache"


def snapshots_dir(job_dir: Path) -> Path:
    return job_dir / "snapshots"
