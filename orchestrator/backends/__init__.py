"""Adapters to clusters. They do not know each other; each has render, client, states and backend."""
