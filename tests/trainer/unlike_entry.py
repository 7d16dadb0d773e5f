"""The trainer, of which each rank has a learning rate of its own, as by a configuration file that differs by node."""

import json
import os
import sys

from trainer import __main__

if __name__ == "__main__":
    config = {**json.loads(sys.argv[-1]), "learning_rate": 0.001 * (1 + int(os.environ["RANK"]))}
    sys.exit(__main__.main(["--config", json.dumps(config)]))
