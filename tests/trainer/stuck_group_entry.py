"""Rank 0 loses its peer while a collective waits, and forms another group. Rank 1 is absent until then.

gloo misses a failed write if another thread has not seen the end of the connection yet: the collective then waits until
the group's timeout, as it does here.
"""

import os

import torch
import torch.distributed as dist

from trainer.contract.env import parse_place
from trainer.worker.group import process_group
from trainer.worker.heartbeat import Heartbeat
from trainer.worker.torch_compat import keep_process_groups, store_of_the_group
from trainer.worker.waits import Waits

keep_process_groups()
place = parse_place(os.environ)
waits = Waits(Heartbeat(place, 1))
store = None
try:
    with process_group(place, waits, is_last=False):
        store = store_of_the_group()
        if place.rank == 1:
            store.wait(["another group"])
            os._exit(0)
        dist.all_reduce(torch.ones(4), async_op=True)
        raise RuntimeError("Connection closed by peer [127.0.0.1]:1")
except RuntimeError as error:
    print(error, flush=True)
alone = parse_place({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"})
with process_group(alone, waits):
    total = torch.ones(4)
    dist.all_reduce(total)
    print(total.sum().item(), flush=True)
assert store is not None
store.set("another group", "")
os._exit(0)
