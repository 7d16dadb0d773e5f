"""The command `orchestrator`. Start with main.py."""

import sys

if sys.version_info < (3, 11):  # the package installs on 3.10 too, for the trainer
    sys.exit("orchestrator needs Python 3.11 or newer; elasticrun runs on 3.10 too")
