"""Environment variables of a job's workers that torchrun does not set."""

from __future__ import annotations

from collections.abc import Mapping

from trainer.contract import env, layout
from trainer.elastic.records.record import Record


def render_job_environment(record: Record, generation: int, inherited: Mapping[str, str]) -> dict[str, str]:
    """Variables for the workers of a generation. Cache and trace variables that the job's owner has set are kept."""
    cache, folder = layout.cache_dir(record.job_dir), record.incarnation_dir / f"g{generation}"
    ours = {env.REPLICA_DIR: str(record.incarnation_dir)}
    if record.policy is not None:
        ours[env.NOTICE_S] = f"{record.policy.stop_timeout_s:g}"
    wanted = {
        # torch's default is in /tmp. On another node or in a new pod, a restart would have to compile again.
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "TRITON_CACHE_DIR": str(cache / "triton"),
        # NCCL's flight recorder writes the last collectives of a rank here if one times out. It appends the rank.
        "TORCH_FR_DUMP_TEMP_FILE": str(folder / "nccl-trace-"),
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(folder / "nccl-trace-"),  # the name before torch 2.9
    }
    return {name: value for name, value in wanted.items() if name not in inherited} | ours
