"""A worker with a twin that kills itself. Prints how both ended, how much later the twin did and its CPU time, in JSON.

late_release_entry.py MEGABYTES [at-once | exits]

With at-once, the worker dies before its twin has made its first call. With exits, it ends as Python does.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from tests.elastic.harness import wait_for
from trainer.elastic.health.processes import adopt_orphans
from trainer.elastic.workers.late_release import release_memory_late


def main() -> None:
    adopt_orphans()
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])  # so that a worker that goes on runs before its twin
    dying, killed_at = os.pipe()
    worker = os.fork()
    if worker == 0:
        memory = bytearray(os.urandom(1 << 20) * int(sys.argv[1]))
        twin = release_memory_late()
        if "at-once" not in sys.argv:
            wait_for(lambda: Path(f"/proc/{twin}/comm").read_text() == "frees-memory\n", "the twin's name")
        os.write(killed_at, str(time.monotonic()).encode())
        if "exits" not in sys.argv:
            os.kill(os.getpid(), signal.SIGKILL)
        sys.exit(not memory)
    _, status = os.waitpid(worker, 0)
    _, twin_status, usage = os.wait4(-1, 0)  # adopted
    later_s = time.monotonic() - float(os.read(dying, 100))
    codes = [os.waitstatus_to_exitcode(each) for each in (status, twin_status)]
    print(json.dumps({"codes": codes, "later_s": later_s, "twin_cpu_s": usage.ru_utime + usage.ru_stime}))


if __name__ == "__main__":
    main()
