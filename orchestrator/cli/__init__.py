"""The command `orchestrator`. Start with main.py."""
