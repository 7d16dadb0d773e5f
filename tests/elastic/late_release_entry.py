"""A worker with a twin, killed by its parent, which prints how it ended and the CPU time of each, in JSON.

late_release_entry.py MEGABYTES
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

from trainer.elastic.health.processes import adopt_orphans
from trainer.elastic.workers.late_release import release_memory_late


def main() -> None:
    adopt_orphans()
    reader, writer = os.pipe()
    worker = os.fork()
    if worker == 0:
        memory = bytearray(os.urandom(1 << 20) * int(sys.argv[1]))
        os.write(writer, f"{release_memory_late()}\n".encode())
        time.sleep(600)
        raise SystemExit(len(memory))
    twin = int(os.read(reader, 100))
    os.kill(worker, signal.SIGKILL)
    _, status = os.waitpid(worker, 0)
    ended, twin_status, usage = os.wait4(-1, 0)  # adopted
    assert ended == twin
    codes = [os.waitstatus_to_exitcode(each) for each in (status, twin_status)]
    print(json.dumps({"codes": codes, "twin_cpu_s": usage.ru_utime + usage.ru_stime}))


if __name__ == "__main__":
    main()
