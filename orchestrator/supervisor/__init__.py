"""The loop that keeps jobs alive. Start with reconcile.py."""
