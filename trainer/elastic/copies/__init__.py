"""Copies of the state in the memory of nodes: the files, and how agents exchange them."""
