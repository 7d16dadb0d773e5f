"""Copies of the state in the memory of nodes: how agents serve and mirror them."""
