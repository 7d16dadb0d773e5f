"""From what a benchmark prints with --json to the Markdown of its section. Pure; one function for each benchmark.

A function gets one document for each command that was run, in the order of the commands. Those about training are in
training.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.report.cells import Document, render_counts, render_number, render_seconds, render_table

_REQUESTS = ("n", "a second", "p50", "p95", "p99", "refused")


def render_startup(documents: Sequence[Document]) -> list[str]:
    (document,) = documents
    names = [name for name, value in document.items() if isinstance(value, dict)]
    rows = [
        [name, *(render_number(document[name][key]) for key in ("median", "min", "max", "limit"))] for name in names
    ]
    return render_table([f"n = {document['runs']}", "median", "least", "greatest", "limit"], rows)


def render_control_plane(documents: Sequence[Document]) -> list[str]:
    (document,) = documents
    kinds: dict[str, Document] = {name: document[name] for name in ("sqlite", "postgresql") if name in document}
    lines: list[str] = []
    for title, rows in (
        ("Submissions", list(_submission_rows(kinds))),
        ("Stored jobs: one client, one request after the other", list(_read_rows(kinds))),
        ("Reports of agents", list(_report_rows(kinds))),
    ):
        if rows:
            lines += [*render_table([title, *_REQUESTS], rows), ""]
    passes = list(_pass_rows(kinds))
    if passes:
        header = ["A pass over running jobs", "n", "CPU, median", "least", "greatest", "wall, median"]
        lines += [*render_table(header, passes), ""]
    memory = [[f"{kind}, {part}", f"{told['memory']['rss_mb']} MB", f"{told['memory']['peak_mb']} MB"]
              for kind, part, told in _parts(kinds) if "memory" in told]  # fmt: skip
    return [*lines, *render_table(["Memory of the service", "after", "peak"], memory)] if memory else lines[:-1]


def render_followers(documents: Sequence[Document]) -> list[str]:
    (document,) = documents
    kinds: dict[str, Document] = {name: document[name] for name in ("sqlite", "postgresql") if name in document}
    beside = render_table(["20 requests a second", *_REQUESTS, "a pass", "p95 and passes grow by"], _beside_rows(kinds))
    asked = render_table(["Who asks for one job", *_REQUESTS, "CPU of the service", "grows by"], _caller_rows(kinds))
    return [*beside, "", *asked]


def _beside_rows(kinds: dict[str, Document]) -> Iterable[list[str]]:
    for kind, part, told in _parts(kinds):
        for name, figures in told.items() if part == "followers" else ():
            if isinstance(figures, dict):
                grown = f"{told['p95_grows_by']:+.0%}, {told['passes_grow_by']:+.0%}" if name != "alone" else ""
                pass_ms = f"{render_number(figures['pass_ms'])} ms"
                yield [*_requests(f"{kind}, {name}", figures), pass_ms, grown]


def _caller_rows(kinds: dict[str, Document]) -> Iterable[list[str]]:
    for kind, part, told in _parts(kinds):
        for caller in ("open", "admin", "viewer") if "identity" in told else ():
            figures, share = told["identity"][caller], told["identity"].get(f"share_of_{caller}s_token")
            cpu_ms = f"{render_number(figures['cpu_ms'])} ms"
            row = _requests(f"{kind}, {part}: {caller}", figures)
            yield [*row, cpu_ms, "" if share is None else f"{share:+.0%}"]


def _parts(kinds: dict[str, Document]) -> Iterable[tuple[str, str, Document]]:
    for kind, parts in kinds.items():
        yield from ((kind, name, told) for name, told in parts.items() if isinstance(told, dict))


def _submission_rows(kinds: dict[str, Document]) -> Iterable[list[str]]:
    for kind, part, told in _parts(kinds):
        if part == "submissions":
            yield from (_requests(f"{kind}, {name}", told[name]) for name in ("sequential", "16 clients"))


def _read_rows(kinds: dict[str, Document]) -> Iterable[list[str]]:
    for kind, part, told in _parts(kinds):
        yield from (_requests(f"{kind}, {part}: {name}", told[name]) for name in ("list", "show") if name in told)


def _report_rows(kinds: dict[str, Document]) -> Iterable[list[str]]:
    for kind, _, told in _parts(kinds):
        yield from (_requests(f"{kind}: {name}", figures) for name, figures in told.get("reports", {}).items())


def _pass_rows(kinds: dict[str, Document]) -> Iterable[list[str]]:
    for kind, part, told in _parts(kinds):
        for name, figures in told.items() if part.startswith("pass over") else ():
            if isinstance(figures, dict):
                times = [f"{figures[key]} s" for key in ("cpu_s", "cpu_min_s", "cpu_max_s", "wall_s")]
                yield [f"{kind}, {part.removeprefix('pass over ')}: {name}", str(figures["n"]), *times]


def _requests(name: str, told: Document) -> list[str]:
    times = [f"{render_number(told[key])} ms" for key in ("p50_ms", "p95_ms", "p99_ms")]
    return [name, str(told["n"]), render_number(told["per_s"]), *times, str(told["refused"])]


def render_dashboard(documents: Sequence[Document]) -> list[str]:
    (document,) = documents
    groups = {name: told for name, told in document.items() if isinstance(told, dict) and name != "machine"}
    paints = [[name, f"{told['median_ms']} ms", f"{told['longest_ms']} ms"]
              for name, told in groups.items() if "longest_ms" in told]  # fmt: skip
    polls = [
        [name, str(told["n"]), f"{told['p50_ms']} ms", f"{told['p95_ms']} ms", render_counts(told["statuses"])]
        for name, told in groups.items()
        if "p50_ms" in told
    ]
    passes = [
        [name, str(int(told["passes"])), f"{told['mean_pass_ms']} ms", str(told["service_cores"])]
        for name, told in groups.items()
        if "passes" in told
    ]
    lines = [f"{document['jobs']} stored jobs; a job of {document['steps']} steps.", ""]
    if paints:
        lines += [*render_table(["n = 10", "median", "longest"], paints), ""]
    lines += [*render_table(["request", "n", "p50", "p95", "statuses"], polls), ""]
    return [*lines, *render_table(["meanwhile", "passes", "mean pass", "cores of the service"], passes)]


def render_orphans(documents: Sequence[Document]) -> list[str]:
    (told,) = documents
    least, most = told["processes"]
    row = [
        f"{told['left_nothing']} of {told['kills']}",
        str(least) if least == most else f"{least} to {most}",
        render_seconds(told["gone_p50_s"]),
        render_seconds(told["gone_max_s"]),
    ]
    header = [f"nothing alive after {told['allowed_s']:g} s", "processes below an agent", "all gone, median", "longest"]
    return render_table(header, [row])


def render_slurm(documents: Sequence[Document]) -> list[str]:
    (told,) = documents
    rows = [
        [
            name,
            *(render_seconds(row[column]) for column in ("median_s", "min_s", "max_s", "cpu_s")),
            *(f"{row[calls]:g}" if calls in row else "" for calls in ("listings", "other_calls")),
        ]
        for name, row in told["rows"].items()
    ]
    header = ["a pass", "median", "least", "most", "CPU", "listings", "other calls"]
    amounts = f"{told['jobs']} jobs of ours among {told['foreign']}, n = {told['passes']}; limit {told['limit_s']:g} s."
    return [amounts, "", *render_table(header, rows)]


def render_nodes(documents: Sequence[Document]) -> list[str]:
    names = {"loss_by_kill": "lost by SIGKILL", "loss_by_cut": "lost by a silent network", "join": "joins"}
    rows = [
        [
            str(document["nodes"]),
            name,
            str(document[key]["n"]),
            *(render_seconds(document[key][what]) for what in ("p50_s", "max_s")),
        ]
        for document in documents
        for key, name in names.items()
        if document[key]["n"]
    ]
    splits = [document["split"] for document in documents if document["split"]]
    told = f"Two worlds that trained at one time: {'; '.join(map(str, splits)) or 'none'}."
    return [*render_table(["nodes", "a node", "n", "next step of the group, median", "longest"], rows), "", told]


def render_memory(documents: Sequence[Document]) -> list[str]:
    (document,) = documents
    rows = [
        [
            row["name"],
            f"{row['parameters'] / 1e9:.2f}B",
            row["how"],
            str(row["devices"]),
            f"{row['traced_bytes'] / 1e9:.2f} GB",
            f"{row['formula_bytes'] / 1e9:.2f} GB",
            f"{row['difference']:+.1%}",
        ]
        for row in document["rows"]
    ]
    header = ["model", "parameters", "strategy", "devices", "traced", "formula", "difference"]
    return [*render_table(header, rows), "", f"Worst {document['worst']:.1%}, limit {document['limit']:.0%}."]


def render_simulate_ettr(documents: Sequence[Document]) -> list[str]:
    (document,) = documents
    rows = [
        [
            name,
            str(told["seeds"]),
            f"{told['ettr_mean']:.6f}",
            "" if told["ettr_standard_error"] is None else f"{told['ettr_standard_error']:.6f}",
            f"{told['ettr_closed_form']:.6f}",
            f"{told['difference']:+.3%}",
            f"{told['cpu_s_median']:.2f} s ({told['cpu_s_max']:.2f} s)",
            str(told["violations"]),
        ]
        for name, told in document.items()
        if "ettr_mean" in told
    ]
    header = ["", "seeds", "mean ETTR", "standard error", "Daly", "difference", "CPU of one run (most)", "violations"]
    crowds = [
        f"{told['jobs']} jobs at once: {render_counts(told['states'])}; {told['attempts']} attempts and "
        f"{told['passes']} passes in {told['simulated_days']:.1f} simulated days; {told['cpu_s']:.0f} CPU seconds, "
        f"{len(told['violations'])} violations."
        for told in document.values()
        if "states" in told
    ]
    return [*render_table(header, rows), *(["", *crowds] if crowds else [])]
