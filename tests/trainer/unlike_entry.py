"""The trainer with another learning rate on each rank, as if a configuration file differed between nodes."""

import json
import os
import sys

from trainer import __main__

if __name__ == "__main__":
    config = {**json.loads(sys.argv[-1]), "learning_rate": 0.001 * (1 + int(os.environ["RANK"]))}
    sys.exit(__main__.main(["--config", json.dumps(config)]))
