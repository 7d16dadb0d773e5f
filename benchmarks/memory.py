"""The formulas for memory beside fake tensors, on shapes as large as they are used for. No memory is taken.

    python -m benchmarks.memory [--only NAME ...] [--json]

Both count the tensors of one device at the worst moment of a step; exit status 1 when they differ by more than a tenth.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass

from trainer.checks.traced_memory import trace_peak
from trainer.contract.memory import estimate
from trainer.contract.workload import Workload, preset_shape

LIMIT = 0.10
LOADS: dict[str, Workload] = {
    "124m": Workload(shape=preset_shape("124m", vocab=50_304), seq_len=1024, micro_batch=8, devices=1),
    "1b": Workload(
        shape=preset_shape("1b", vocab=128_256),
        seq_len=2048,
        micro_batch=4,
        devices=8,
        precision="bf16",
        recompute_every=1,
    ),
    "8b": Workload(
        shape=preset_shape("8b", vocab=128_256),
        seq_len=4096,
        micro_batch=1,
        devices=8,
        strategy="fsdp",
        precision="bf16",
    ),
    "8b recomputed": Workload(
        shape=preset_shape("8b", vocab=128_256),
        seq_len=8192,
        micro_batch=2,
        devices=64,
        shard_size=8,
        strategy="hsdp",
        precision="bf16",
        recompute_every=1,
        accumulates=True,
    ),
    "1b sharded between steps": Workload(
        shape=preset_shape("1b"), seq_len=2048, micro_batch=2, devices=8, strategy="shard_grad_op"
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    name: str
    how: str
    parameters: int
    devices: int
    traced_bytes: int
    formula_bytes: int
    difference: float  # of the formula from the trace, relative to it
    trace_s: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=LOADS, default=list(LOADS), metavar="NAME", help=", ".join(LOADS))
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    rows = [_compare(name, LOADS[name]) for name in options.only]
    worst = max(abs(row.difference) for row in rows)
    if options.json:
        print(json.dumps({"limit": LIMIT, "worst": worst, "rows": [asdict(row) for row in rows]}))
    else:
        print(
            "| model | parameters | strategy | devices | traced | formula | difference |\n|---|---|---|---|---|---|---|"
        )
        for row in rows:
            sizes = " | ".join(f"{size / 1e9:.2f} GB" for size in (row.traced_bytes, row.formula_bytes))
            what = f"{row.name} | {row.parameters / 1e9:.2f}B | {row.how} | {row.devices}"
            print(f"| {what} | {sizes} | {row.difference:+.1%} |")
        print(f"worst {worst:.1%}, limit {LIMIT:.0%}; {sum(row.trace_s for row in rows):.0f} s of tracing")
    return 0 if worst <= LIMIT else 1


def _compare(name: str, load: Workload) -> Row:
    began = time.perf_counter()
    traced = trace_peak(load)
    trace_s = time.perf_counter() - began
    formula = estimate(load).terms.total
    batch = f"{load.micro_batch} x {load.seq_len} tokens, vocabulary {load.shape.vocab}"
    extras = (", recomputed" if load.recompute_every else "") + (", accumulating" if load.accumulates else "")
    return Row(
        name=name,
        how=f"{load.strategy}, {load.precision}{extras}, {batch}",
        parameters=load.shape.parameters,
        devices=load.devices,
        traced_bytes=traced,
        formula_bytes=round(formula),
        difference=formula / traced - 1,
        trace_s=round(trace_s, 1),
    )


if __name__ == "__main__":
    sys.exit(main())
