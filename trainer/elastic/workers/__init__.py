"""An agent's workers: forked, started, given their logs and their environment, and ended."""
