"""Authentication of callers and agents, limits on their requests, and sealed secrets."""
