"""A rehearsal: weeks of a cluster's life in seconds. The real policy, admission and passes; no files, no processes."""
