"""The agent: torchrun's elastic agent with records, safe restarts and reports to the service."""
