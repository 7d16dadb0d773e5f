"""Observations of attempts and nodes, and what follows from them: a hang, a first cause, nodes to avoid."""
