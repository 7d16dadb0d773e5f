"""What every worker process has: its group, heartbeats, signals, and collectives that carry a failure."""
