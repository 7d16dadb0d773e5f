"""The service: stores jobs, launches them, watches their workers and restarts training."""
