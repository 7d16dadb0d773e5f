"""Note in the folder of the first argument that this rank has begun, and end once it has a file `finish-<rank>`."""

import os
import sys
import time
from pathlib import Path

folder, rank = Path(sys.argv[1]), os.environ["RANK"]
(folder / f"began-{rank}-{os.getpid()}").touch()
while not (folder / f"finish-{rank}").exists():
    time.sleep(0.01)
