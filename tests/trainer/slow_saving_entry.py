"""The trainer, but its snapshots take time: SECONDS_BEFORE_COPY once, SECONDS_PER_TENSOR in writing.

With NO_WAIT the optimizer does not wait for the copies, which is the mistake that a test must notice.
"""

import os
import sys
import threading
import time

from trainer import __main__, staging, writing
from trainer.saver import Saver

copy, resolve = staging.Stager._copy, writing._Given.resolve_data


def copy_late(self, values, names):
    if threading.current_thread().name == "stager":
        time.sleep(float(os.environ.get("SECONDS_BEFORE_COPY", "0")))
    return copy(self, values, names)


def resolve_slowly(self, write_item):
    if threading.current_thread().name == "stager":
        time.sleep(float(os.environ.get("SECONDS_PER_TENSOR", "0")))
    return resolve(self, write_item)


staging.Stager._copy, writing._Given.resolve_data = copy_late, resolve_slowly
if os.environ.get("NO_WAIT"):
    Saver.before_update = lambda self, *_: None
if __name__ == "__main__":
    sys.exit(__main__.main())
