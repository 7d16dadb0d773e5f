"""The bundled trainer. In generation 1, all ranks but the last one hang in step 6, as if gloo had lost a message."""

import os
import sys
import time
from pathlib import Path

import torch.distributed as dist

from trainer.__main__ import leave, main
from trainer.contract import env
from trainer.loop import step

all_reduce, taken = dist.all_reduce, 0


def forget(*arguments, **options):
    global taken
    taken += 1
    if taken == 6:
        Path(os.environ[env.JOB_DIR], f"hangs-{os.environ['RANK']}").touch()
        time.sleep(3600)
    return all_reduce(*arguments, **options)


class Forgetful:
    """torch.distributed with another `all_reduce`."""

    all_reduce = staticmethod(forget)

    def __getattr__(self, name):
        return getattr(dist, name)


if os.environ["ORCHESTRATOR_GENERATION"] == "1" and int(os.environ["RANK"]) < int(os.environ["WORLD_SIZE"]) - 1:
    step.dist = Forgetful()
leave(lambda: main(sys.argv[1:]))
