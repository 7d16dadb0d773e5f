"""`python -m trainer.checks.memory_advice`: estimate the memory of each device, and find the first strategy that fits.

    python -m trainer.checks.memory_advice --preset 8b --device-memory 80GB --devices 8
    python -m trainer.checks.memory_advice --config @config.json --device h100 --devices 8 --json

Exit status: 0 if some rung fits, 1 if none does, 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from trainer.contract.advice import BEYOND, Step, climb, describe_need, first_fitting
from trainer.contract.config import PRECISIONS, PRESETS, parse_config
from trainer.contract.devices import find_device_bytes, parse_size
from trainer.contract.workload import Workload, build_workload


def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(argv)
    try:
        load, device_bytes = _workload(options), _device_bytes(options)
        steps = climb(load, device_bytes)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    found = first_fitting(steps)
    if options.json:
        print(json.dumps(_document(load, device_bytes, steps, found)))
    else:
        print(_table(steps))
        print(_sentence(load, device_bytes, found))
    return 0 if found is not None or device_bytes is None else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m trainer.checks.memory_advice",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", help="the trainer's configuration as JSON, or @file")
    parser.add_argument("--preset", choices=PRESETS, help="preset to use instead of the configured one")
    parser.add_argument("--vocab", type=int, default=256, help="size of the vocabulary (default: 256)")
    parser.add_argument("--seq", type=int, help="tokens per sequence (default: the configuration's, or 2048)")
    parser.add_argument("--micro-batch", type=int, help="sequences per forward pass (default: as configured, or 1)")
    parser.add_argument("--precision", choices=PRECISIONS)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--device-memory", help="memory of one device, such as 80GB")
    parser.add_argument("--device", help="name of the device, such as h100 or a100-80gb, instead of --device-memory")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def _workload(options: argparse.Namespace) -> Workload:
    if options.devices < 1:
        raise ValueError("--devices must be at least 1")
    if not (options.config or options.preset):
        raise ValueError("give --config or --preset")
    text = options.config or '{"seq_len": 2048, "global_batch": 1}'
    document = json.loads(Path(text[1:]).read_text() if text.startswith("@") else text)
    if not isinstance(document, dict):
        raise ValueError("--config is not a JSON object")
    config = parse_config(document | ({"preset": options.preset} if options.preset else {}))
    if config.task is not None:
        raise ValueError("the shape of a task's model is unknown")
    load = build_workload(config, world_size=options.devices, vocab=options.vocab)
    given = {"seq_len": options.seq, "micro_batch": options.micro_batch, "precision": options.precision}
    return replace(load, **{name: value for name, value in given.items() if value is not None})


def _device_bytes(options: argparse.Namespace) -> int | None:
    if options.device_memory:
        return parse_size(options.device_memory)
    if options.device is None:
        return None
    size = find_device_bytes(options.device)
    if size is None:
        raise ValueError(f"--device {options.device} is unknown; give --device-memory")
    return size


def _table(steps: Sequence[Step]) -> str:
    names = [*steps[0].need.terms.by_name(), "overhead", "total"]
    header = ["GB on each device", *names, "fits"]
    rows = [header]
    for step in steps:
        sizes = [*step.need.terms.by_name().values(), step.need.overhead, step.need.total]
        fits = {True: "yes", False: "no", None: "?"}[step.fits]
        rows.append([step.rung.name, *(f"{size / 1e9:.2f}" for size in sizes), fits])
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    lines = (
        "  ".join(cell.rjust(width) if column else cell.ljust(width) for column, (cell, width) in enumerate(pairs))
        for pairs in (zip(row, widths, strict=True) for row in rows)
    )
    return "\n".join(line.rstrip() for line in lines)


def _sentence(load: Workload, device_bytes: int | None, found: Step | None) -> str:
    if device_bytes is None:
        return f"As configured: {describe_need(load, None)}. Give --device-memory to see what fits."
    if found is None:
        return f"Nothing fits into {device_bytes / 1e9:g} GB: it needs {BEYOND}."
    return (
        f"Use {found.rung.name} ({found.rung.settings}): the first rung that fits, "
        f"with {found.need.total / 1e9:.3g} of {device_bytes / 1e9:g} GB."
    )


def _document(load: Workload, device_bytes: int | None, steps: Sequence[Step], found: Step | None) -> dict[str, object]:
    return {
        "parameters": load.shape.parameters,
        "devices": load.devices,
        "device_bytes": device_bytes,
        "rungs": [
            {
                "name": step.rung.name,
                "settings": step.rung.settings,
                "terms": {name: round(size) for name, size in step.need.terms.by_name().items()},
                "overhead_bytes": round(step.need.overhead),
                "total_bytes": round(step.need.total),
                "host_bytes": round(step.need.host),
                "fits": step.fits,
            }
            for step in steps
        ],
        "recommended": found.rung.name if found else None,
        "sentence": _sentence(load, device_bytes, found),
    }


if __name__ == "__main__":
    sys.exit(main())
