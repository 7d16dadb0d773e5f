"""`resources` of a job."""

from __future__ import annotations

from orchestrator.cli.common import AsJson, JobId, find_job, print_json, reading
from orchestrator.cli.render import age, print_table, size
from orchestrator.cli.terminal import say
from orchestrator.wire.history_views import RankUseView
from orchestrator.wire.job_views import JobView


def resources(job_id: JobId, as_json: AsJson = False) -> None:
    """Show the memory, CPU and GPU use of each rank.

    PEAK is the highest memory of all samples, of at most 16 ranks.
    """
    with reading() as client:
        job = find_job(client, job_id)
        found = client.resources(job.id)
    if as_json:
        print_json(found)
        return
    if not found.newest:
        say(_explain_none(job), err=True)
        return
    peaks = {each.rank: max(filter(None, each.memory_bytes), default=None) for each in found.ranks}
    header = ("RANK", "MEMORY", "PEAK", "CPU CORES", "GPU MEMORY", "GPU", "GENERATION", "SAMPLED")
    rows = (_row(use, peaks.get(use.rank)) for use in found.newest)
    print_table(header, rows, spare=("GENERATION",))
    if found.partial:
        say("There are more nodes or attempts than one answer covers.", err=True)


def _row(use: RankUseView, peak_bytes: int | None) -> tuple[str, ...]:
    return (
        str(use.rank),
        size(use.memory_bytes),
        size(peak_bytes),
        "" if use.cpu_cores is None else f"{use.cpu_cores:.2f}",
        size(use.gpu_memory_bytes),
        "" if use.gpu_utilization is None else f"{use.gpu_utilization:.0%}",
        str(use.generation),
        f"{age(use.at)} ago",
    )


def _explain_none(job: JobView) -> str:
    if job.spec.launcher == "torchrun":
        return "No samples: torchrun's agent takes none."
    return "No samples were taken." if job.state.terminal else "No samples yet. Agents take them while ranks run."
