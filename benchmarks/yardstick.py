"""How quick the machine is at this hour, so that figures of different days and machines can be compared.

python -m benchmarks.yardstick
"""

from __future__ import annotations

import os
import random
import time

_ADDITIONS = 5_000_000
_OBJECTS = 1_000_000


def measure() -> dict[str, float]:
    """Seconds of one core: `loop_s` for 5 million additions, `memory_s` for a million objects read in random order."""
    began = time.process_time()
    total = 0
    for number in range(_ADDITIONS):
        total += number
    loop_s = time.process_time() - began
    objects = [{"value": number} for number in range(_OBJECTS)]
    order = list(range(_OBJECTS))
    random.Random(0).shuffle(order)
    began = time.process_time()
    for index in order:
        total += objects[index]["value"]
    return {"loop_s": round(loop_s, 3), "memory_s": round(time.process_time() - began, 3)}


def describe() -> str:
    """One line: load, cores and speed of this machine now."""
    machine = {"load": round(os.getloadavg()[0], 2), "cores": os.cpu_count(), **measure()}
    return "  ".join(f"{name} {value}" for name, value in machine.items())


if __name__ == "__main__":
    print(describe())
