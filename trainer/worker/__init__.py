"""The parts that every worker process has: group, heartbeat, signals, and collectives that carry failures."""
