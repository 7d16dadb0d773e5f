"""Simulate weeks of a cluster in seconds, with the real policy and supervisor. Start with simulation.py."""
