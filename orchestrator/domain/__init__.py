"""Words and policy. Pure: no clock, no I/O, no database, no torch."""
