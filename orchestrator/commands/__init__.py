"""Requests to the service, and the checks before they are accepted. Writes what is desired, never a status."""
