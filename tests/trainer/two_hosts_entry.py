"""A preflight whose ranks take themselves for nodes of their own, with names that nobody knows."""

import os
import socket

from trainer.checks.preflight import main

socket.gethostname = lambda: f"node-{os.environ['RANK']}.invalid"
raise SystemExit(main())
