"""The trainer in a process that may take only so many more bytes than it has once everything is imported."""

import resource
import sys
from pathlib import Path

import torch._dynamo  # what a first optimizer imports

from trainer.__main__ import main

_MORE_BYTES = 700 * 1024 * 1024

assert torch._dynamo
has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (has + _MORE_BYTES, resource.RLIM_INFINITY))
sys.exit(main())
