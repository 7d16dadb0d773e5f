"""Start and end an agent's workers, with their environment and their logs."""
