"""A preflight in which each rank claims to be a separate node, with a name that cannot be resolved."""

import os
import socket

from trainer.checks.preflight import main

socket.gethostname = lambda: f"node-{os.environ['RANK']}.invalid"
raise SystemExit(main())
