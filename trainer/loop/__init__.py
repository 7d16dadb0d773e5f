"""The training loop of the bundled trainer: what a run begins with, one step, and what watches it."""
