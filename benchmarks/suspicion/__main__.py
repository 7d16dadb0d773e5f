"""False suspicions of the detector of heartbeats, and the time until it suspects a dead peer.

    python -m benchmarks.suspicion [--hours N] [--seed N] [--json]     # simulated links
    python -m benchmarks.suspicion --netem MINUTES [--json]            # real links, as root

The simulation feeds the real detector with five heartbeats a second in virtual time, N hours of each link. A fixed
limit suspects each silence of more than 2 s. Deaths come at random moments.

--netem runs the real links of four simulated machines, each to each other, whose networks delay and lose datagrams
(netem.py). At the end it drops all packets of one machine. Exit status 1 if a link was suspected before.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict

from benchmarks.frame import Figures, begin, build_parser, finish, render_number, render_table
from benchmarks.suspicion.netem import NODES, measure
from benchmarks.suspicion.relay import DELAY_S, JITTER_S, LOSS
from benchmarks.suspicion.simulation import DELAY_JITTER, Outcome, simulate
from deploy.dev.network import NoNamespaces

_DELAYS_S = (0.0, 0.01, 0.05, 0.1)
_LOSSES = (0.0, 0.01, 0.05, 0.3)


def main() -> int:
    options = _parse_options()
    begin()
    if options.netem is not None:
        return _measure_netem(options.netem, as_json=options.json)
    return _measure_simulated(options.hours, options.seed, as_json=options.json)


def _measure_simulated(hours: int, seed: int, *, as_json: bool) -> int:
    cells = [(delay_s, loss) for delay_s in _DELAYS_S for loss in _LOSSES]
    outcomes = [simulate(*cell, hours, seed + number) for number, cell in enumerate(cells)]
    links = [
        {"delay_s": delay_s, "loss": loss} | asdict(outcome)
        for (delay_s, loss), outcome in zip(cells, outcomes, strict=True)
    ]
    header = ["delay", "loss", "false suspicions an hour", "with a fixed limit", "longest silence", "highest phi"]
    rows = [
        [f"{delay_s * 1000:.0f} ms ± {DELAY_JITTER:.0%}", f"{loss:.0%}", *_render_outcome(outcome, hours)]
        for (delay_s, loss), outcome in zip(cells, outcomes, strict=True)
    ]
    table = render_table([*header, "death suspected, p50", "p99"], rows)
    figures: Figures = {"hours": hours, "seed": seed, "links": links}
    return finish(figures, [f"{hours} hours of each link, seed {seed}.", "", *table], as_json=as_json)


def _render_outcome(outcome: Outcome, hours: int) -> Sequence[str]:
    cuts = statistics.quantiles(outcome.deaths_s, n=100)
    return [
        render_number(outcome.suspicions / hours),
        render_number(outcome.over_fixed_limit / hours),
        render_number(outcome.longest_s, "s"),
        render_number(outcome.highest_phi),
        render_number(cuts[49], "s"),
        render_number(cuts[98], "s"),
    ]


def _measure_netem(minutes: float, *, as_json: bool) -> int:
    try:
        measured = measure(minutes)
    except NoNamespaces as error:
        print(error, file=sys.stderr)
        return 1
    figures = _summarize(measured.reports, minutes) | {"death_suspected_s": max(measured.deaths_s)}
    kept = not figures["false_suspicions"] and not figures["refusals"] and not figures["unheard_links"]
    shape = f"{DELAY_S * 1000:.0f} ms ± {JITTER_S * 1000:.0f} ms, {LOSS:.0%} lost"
    title = f"{shape}, by {measured.shaped_by}"
    rows = [(name, render_number(value) if isinstance(value, float) else value) for name, value in figures.items()]
    return finish(figures, render_table([title, ""], rows), as_json=as_json, kept=kept)


def _summarize(reports: Sequence[Figures], minutes: float) -> Figures:
    gaps = [gap for report in reports for gap in report["gaps"]]
    lengths = [length_s for length_s, _ in gaps]
    cuts = statistics.quantiles(lengths, n=1000)
    return {
        "links": NODES * (NODES - 1),
        "minutes": minutes,
        "false_suspicions": sum(report["suspicions"] for report in reports),
        "refusals": sum(report["refusals"] for report in reports),
        "unheard_links": sum(report["unheard"] for report in reports),
        "longest_silence_s": max(report["longest_s"] for report in reports),
        "heartbeats": len(gaps),
        "lost_or_overtaken": 1 - len(gaps) / sum(steps for _, steps in gaps),
        "gap_mean_s": statistics.fmean(lengths),
        "gap_deviation_s": statistics.stdev(lengths),
        "gap_p50_s": cuts[499],
        "gap_p99_s": cuts[989],
        "gap_p999_s": cuts[998],
        "gap_longest_s": max(lengths),
    }


def _parse_options() -> argparse.Namespace:
    parser = build_parser("suspicion", __doc__)
    parser.add_argument("--hours", type=int, default=50, metavar="N", help="of each simulated link (default 50)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the simulation (default 1)")
    parser.add_argument("--netem", type=float, metavar="MINUTES", help="measure real links for so long")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
