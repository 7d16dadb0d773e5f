"""Two ranks meet once; the second time rank 1 stays away for a while."""

import os
import time

from trainer.contract.env import parse_place
from trainer.errors import RankAbsent
from trainer.worker.barrier import Barrier
from trainer.worker.group import process_group
from trainer.worker.heartbeat import Heartbeat
from trainer.worker.waits import Waits

place = parse_place(os.environ)
waits = Waits(Heartbeat(place, 1))
with process_group(place, waits):
    barrier = Barrier(waits)
    barrier.meet("the first evaluation", timeout_s=20)
    print("met", flush=True)
    if place.rank == 1:
        time.sleep(3)
        os._exit(0)
    try:
        barrier.meet("the evaluation after step 7", timeout_s=0.5)
    except RankAbsent as error:
        print(error, flush=True)
        os._exit(0)
