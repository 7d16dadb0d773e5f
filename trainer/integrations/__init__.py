"""Supervision for scripts of other frameworks. Each module imports its framework, and nothing here imports them."""
