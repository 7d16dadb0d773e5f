"""Microbatches: where samples come from, in which order, and how a rank reads them ahead of time."""
