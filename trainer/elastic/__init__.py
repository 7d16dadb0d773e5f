"""The agent: torchrun's elastic agent with book-keeping, safe restarts and a report to the service."""
