"""What an agent writes down and reports: claim, identity, journal, exit record."""
