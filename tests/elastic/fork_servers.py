"""A fork server whose agent is the test."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.elastic.harness import ROOT
from trainer.elastic.channel import Channel
from trainer.elastic.workers.fork_server_client import ForkServerClient

_SERVER = """\
import os, socket, sys
from trainer.elastic.channel import Channel
from trainer.elastic.workers import forkserver
keeper, agent, null = map(int, sys.argv[1:])
server = forkserver.ForkServer(Channel(socket.socket(fileno=keeper)), os.getppid())
server._agent_channel = Channel(socket.socket(fileno=agent))
forkserver.adopt_orphans()
forkserver.run(server, os.getppid(), null)
"""


@dataclass(frozen=True)
class Served:
    client: ForkServerClient
    channel: Channel  # of the client
    process: subprocess.Popen[bytes]


@contextmanager
def fork_server() -> Iterator[Served]:
    keeper, keepers = Channel.pair()
    agent, agents = Channel.pair()
    null = os.open(os.devnull, os.O_WRONLY)
    numbers = [keepers.fileno(), agents.fileno(), null]
    base = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", _SERVER, *map(str, numbers)], env=base, pass_fds=numbers, start_new_session=True
    )
    for end in (keepers, agents):
        end.close()
    os.close(null)
    client = ForkServerClient(agent, server_pid=process.pid, base=base)
    try:
        yield Served(client, agent, process)
    finally:
        client.close()
        keeper.close()
        try:
            process.wait(60)
        finally:
            process.kill()
            process.wait()
