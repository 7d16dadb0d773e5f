"""What tc-netem(8) does, for machines without it: a relay that delays and loses datagrams. Used by netem.py.

Prints one port for each target, reads the targets, and passes datagrams on until its input ends.
"""

from __future__ import annotations

import heapq
import itertools
import json
import random
import select
import socket
import sys
import time

DELAY_S, JITTER_S, LOSS = 0.1, 0.08, 0.05


def main() -> int:
    sockets = [_bind() for _ in range(int(sys.argv[1]))]
    print([each.getsockname()[1] for each in sockets], flush=True)
    targets = [(host, port) for host, port in json.loads(sys.stdin.readline())]
    numbers = itertools.count()
    waiting: list[tuple[float, int, int, bytes]] = []
    while True:
        wait_s = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        ready = select.select([sys.stdin, *sockets], [], [], wait_s)[0]
        if sys.stdin in ready:
            return 0
        for number, each in enumerate(sockets):
            if each in ready and random.random() >= LOSS:
                due_s = time.monotonic() + random.uniform(DELAY_S - JITTER_S, DELAY_S + JITTER_S)
                heapq.heappush(waiting, (due_s, next(numbers), number, each.recv(2048)))
            elif each in ready:
                each.recv(2048)
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, number, data = heapq.heappop(waiting)
            sockets[number].sendto(data, targets[number])


def _bind() -> socket.socket:
    bound = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    bound.bind(("", 0))
    return bound


if __name__ == "__main__":
    sys.exit(main())
