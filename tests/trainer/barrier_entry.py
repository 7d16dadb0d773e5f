"""Two ranks meet once. The second time rank 1 is absent until rank 0 has given up. With `dies`, rank 1 dies instead."""

import os
import sys
from contextlib import suppress

from trainer.contract.env import parse_place
from trainer.errors import RankAbsent
from trainer.worker.barrier import Barrier
from trainer.worker.group import process_group
from trainer.worker.heartbeat import Heartbeat
from trainer.worker.lost_peer import is_end_of_group
from trainer.worker.torch_compat import store_of_the_group
from trainer.worker.waits import Waits

place = parse_place(os.environ)
waits = Waits(Heartbeat(place, 1))
with process_group(place, waits):
    barrier = Barrier(waits)
    barrier.wait("the first evaluation", timeout_s=20)
    print("met", flush=True)
    if "dies" in sys.argv:
        if place.rank == 1:
            os._exit(0)
        try:
            barrier.wait("the evaluation after step 7", timeout_s=300)
        except RuntimeError as error:
            print(is_end_of_group(error), error, flush=True)
        os._exit(0)
    if place.rank == 1:
        with suppress(RuntimeError):  # the store may have ended with rank 0
            store_of_the_group().wait(["given up"])
        os._exit(0)
    try:
        barrier.wait("the evaluation after step 7", timeout_s=0.5)
    except RankAbsent as error:
        print(error, flush=True)
        store_of_the_group().set("given up", "")
        os._exit(0)
