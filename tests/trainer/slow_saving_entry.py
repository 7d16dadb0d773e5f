"""The trainer with slow snapshots: SECONDS_BEFORE_COPY once, and SECONDS_PER_TENSOR for each write.

WAITS_FOR_TRAINING names the part, "copy" or "write", that waits until training has begun two more updates. With NO_WAIT
the optimizer does not wait for the copies: a test must notice this bug. With ENDLESS_READS verifying a snapshot never
ends.
"""

import os
import sys
import threading
import time

from trainer import __main__
from trainer.snapshot import files, staging, writing
from trainer.snapshot.saver import Saver

checksum_file = files.checksum_file
copy, resolve, before_update = staging.Stager._copy, writing._Given.resolve_data, Saver.before_update
updates, changed = [0], threading.Condition()


def wait_for_training(what):
    if os.environ.get("WAITS_FOR_TRAINING") == what:
        with changed:
            goal = updates[0] + 2
            assert changed.wait_for(lambda: updates[0] >= goal, timeout=300)


def copy_late(self, *arguments):
    if threading.current_thread().name == "stager":
        time.sleep(float(os.environ.get("SECONDS_BEFORE_COPY", "0")))
        wait_for_training("copy")
    return copy(self, *arguments)


def resolve_slowly(self, write_item):
    if threading.current_thread().name == "stager":
        time.sleep(float(os.environ.get("SECONDS_PER_TENSOR", "0")))
        if not getattr(self, "has_waited", False):
            self.has_waited = True
            wait_for_training("write")
    return resolve(self, write_item)


def count_update(self, *arguments):
    with changed:
        updates[0] += 1
        changed.notify_all()
    if not os.environ.get("NO_WAIT"):
        before_update(self, *arguments)


def read_slowly(path, *should_continue):
    while os.environ.get("ENDLESS_READS") and should_continue and should_continue[0]():
        time.sleep(0.01)
    return checksum_file(path, *should_continue)


files.checksum_file = read_slowly
staging.Stager._copy, writing._Given.resolve_data, Saver.before_update = copy_late, resolve_slowly, count_update
if __name__ == "__main__":
    sys.exit(__main__.main())
