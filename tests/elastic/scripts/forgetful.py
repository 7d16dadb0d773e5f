"""The bundled trainer. In generation 1, rank 0 stays in the collective of step 6, as if gloo had forgotten it."""

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
        Path(os.environ[env.JOB_DIR], "stays").touch()
        time.sleep(3600)
    return all_reduce(*arguments, **options)


class Forgetful:
    """torch.distributed, but for the collectives of a step."""

    all_reduce = staticmethod(forget)

    def __getattr__(self, name):
        return getattr(dist, name)


if os.environ["ORCHESTRATOR_GENERATION"] == "1" and os.environ["RANK"] == "0":
    step.dist = Forgetful()
leave(lambda: main(sys.argv[1:]))
