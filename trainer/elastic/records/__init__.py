"""The agent's records: claim, identity, journal, exit record, and reports to the service."""
