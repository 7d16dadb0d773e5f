"""The trainer in a process with a limit on memory: 700 MiB more than after all imports."""

import resource
import sys
from pathlib import Path

import torch._dynamo  # the first optimizer would import it above the limit

from trainer.__main__ import main

_MORE_BYTES = 700 * 1024 * 1024

assert torch._dynamo
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + _MORE_BYTES, resource.RLIM_INFINITY))
sys.exit(main())
