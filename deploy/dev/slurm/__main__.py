"""Run a Slurm until Ctrl-C, and print the variable with which a shell uses it.

python -m deploy.dev.slurm [--nodes 3] [--gpus 0] [--accounting]
"""

from __future__ import annotations

import argparse
import signal
import sys

from deploy.dev.slurm.cluster import NoSlurm, ThrowawaySlurm
from deploy.dev.slurm.conf import Shape


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m deploy.dev.slurm", description=__doc__)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--gpus", type=int, default=0, help="GPUs of each node, without real devices")
    parser.add_argument(
        "--accounting",
        action="store_true",
        help="with slurmdbd (packages slurmdbd, mariadb-server-core, mariadb-client-core)",
    )
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with ThrowawaySlurm(Shape(nodes=given.nodes, gpus=given.gpus, accounting=given.accounting)) as slurm:
            print(f"export SLURM_CONF={slurm.environment['SLURM_CONF']}", flush=True)
            signal.pause()
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
    except NoSlurm as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
