"""Where time went: the life of a job from its events, the goodput ledger, and sums over jobs."""
