"""Train a user's task on one rank, in the process of the test."""

from tests.trainer.harness import read_lines
from trainer.contract import env, layout
from trainer.contract.config import parse_config
from trainer.contract.env import parse_place
from trainer.train import run
from trainer.worker.signals import StopFlag

NAME = "tests.trainer.user_task:task"
OPTIONS = {"task": NAME, "global_batch": 8, "micro_batch": 2, "seq_len": 128, "strategy": "ddp", "warmup_steps": 2}


def train_alone(job_dir, generation=1, **options):
    """Train on one rank in this process. Returns the metrics by step, and all events of the generation."""
    replica_dir = layout.replica_dir(job_dir, 1, 0) / str(generation)
    replica_dir.mkdir(parents=True, exist_ok=True)
    place = parse_place({env.JOB_DIR: str(job_dir), env.REPLICA_DIR: str(replica_dir), env.GENERATION: str(generation)})
    config = parse_config({**OPTIONS, "task_config": {"width": 8}, "snapshot_interval": 100, **options})
    assert run(config, place, StopFlag()) == 0
    lines = [line for line in read_lines(replica_dir / layout.PROGRESS) if "loss" in line.get("metrics", {})]
    return {line["step"]: line["metrics"] for line in lines}, read_lines(replica_dir / layout.EVENTS)
