"""The sections about training: restarts, snapshots, and the trainer beside loops by hand. Pure; as in tables.py."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.report.cells import Document, render_number, render_ratio, render_seconds, render_share, render_table

RECOVERY_PROGRAMS = {
    "trainer-ddp": "bundled trainer, DDP",
    "trainer-fsdp": "bundled trainer, FSDP2",
    "script": "a plain DDP script",
}
_LAUNCHERS = {"elastic": "elasticrun", "torchrun_safe": "torchrun, safe settings", "torchrun": "torchrun, defaults"}
_PARTS = {
    "notice_s": "noticed",
    "process_s": "process",
    "verify_s": "snapshot verified",
    "device_s": "device and group",
    "load_s": "loaded",
    "first_step_s": "first step",
}


def render_recovery(documents: Sequence[Document]) -> list[str]:
    """The ratio is that of a launcher's median to ours, of the same run."""
    rows = []
    for program, document in zip(RECOVERY_PROGRAMS.values(), documents, strict=True):
        for key, launcher in _LAUNCHERS.items():
            if key not in document:
                continue
            told = document[key]
            times = [render_seconds(told[name]) for name in ("p50_s", "p95_s", "p99_s")]
            redone = render_number(told["steps_redone"])
            ratio = render_ratio(told["p50_s"], document["elastic"]["p50_s"])
            rows.append([program, launcher, f"{told['recovered']} of {told['kills']}", *times, redone, ratio])
    header = ["program", "launcher", "recovered", "p50", "p95", "p99", "steps made twice", "times elasticrun's p50"]
    lines, splits = render_table(header, rows), list(_split_rows(documents))
    if splits:
        lines += ["", *render_table(["medians, from a kill to rank 0's next step", *_PARTS.values()], splits)]
    return lines


def _split_rows(documents: Sequence[Document]) -> Iterable[list[str]]:
    """Where the median time of each part of a restart went, of the programs that tell it."""
    for program, document in zip(RECOVERY_PROGRAMS.values(), documents, strict=True):
        for key, launcher in _LAUNCHERS.items():
            split = document.get(key, {}).get("split")
            if split is not None:
                yield [f"{program}, {launcher}", *(render_seconds(split[part]) for part in _PARTS)]


def render_snapshot(documents: Sequence[Document]) -> list[str]:
    """The ratio is that of a contestant's stall to the one of `ours, staged`, of the same run."""
    (document,) = documents
    rows, told = [], []
    for summary in document["strategies"]:
        ours = summary["kinds"]["ours, staged"]["stall_s"]
        for name, kind in summary["kinds"].items():
            spread = [
                render_seconds(kind["stall_s"]),
                render_seconds(kind["stalls_s"][0]),
                render_seconds(kind["stalls_s"][-1]),
            ]
            rest = [render_seconds(kind["excess_s"]), render_seconds(kind["in_all_s"])]
            rows.append([summary["strategy"], name, *spread, render_ratio(kind["stall_s"], ours), *rest])
        told.append(
            f"{summary['strategy']}: {summary['parameters'] / 1e6:.1f} million parameters, a quiet step takes "
            f"{summary['quiet_step_s']} s; the {summary['measure']} of `{summary['compared']}` is "
            f"{summary['times_shorter']} times shorter than that of {summary['baseline']}, limit {summary['limit']:g}. "
            f"Verifying a snapshot takes {summary['verify_s']} s."
        )
    header = [
        "",
        f"n = {document['rounds']}",
        "stall, median",
        "least",
        "greatest",
        "times ours, staged",
        "excess of all steps",
        "on disk after",
    ]
    return [*render_table(header, rows), "", *told]


def render_trainer(documents: Sequence[Document]) -> list[str]:
    """The ratio is that of the hand-written loop's time to ours, of the same run: above 1 ours is quicker."""
    told = [score for document in documents for score in document.values()]
    rows = [
        [
            score["strategy"],
            str(score["rounds"]),
            f"{score['ours_ms']} ms",
            f"{score['handwritten_ms']} ms",
            str(score["ratio"]),
            " to ".join(map(str, score["quartiles"])),
            f"{score['ours_cpu_ms']} ms",
            f"{score['handwritten_cpu_ms']} ms",
            str(score["cpu_ratio"]),
        ]
        for score in told
    ]
    header = ["", "rounds", "ours", "by hand", "ratio", "quartiles", "ours, CPU", "by hand, CPU", "CPU ratio"]
    return render_table(header, rows)


def render_trainer_gpu(documents: Sequence[Document]) -> list[str]:
    """Tokens a second of both, of the same run."""
    told = [score for document in documents for score in document.values()]
    rows = [
        [
            score["strategy"],
            str(score["rounds"]),
            *(f"{score[f'{side}_tokens_per_s']:,} tokens/s" for side in ("ours", "handwritten")),
            *(render_share(score[f"{side}_mfu"]) for side in ("ours", "handwritten")),
            str(score["ratio"]),
            " to ".join(map(str, score["quartiles"])),
            f"{score['limit']:g}",
        ]
        for score in told
    ]
    return render_table(["", "rounds", "ours", "by hand", "MFU", "by hand", "ratio", "quartiles", "limit"], rows)
