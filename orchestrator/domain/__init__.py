"""The types and rules of the service. Pure: no clock, no I/O, no database, no torch."""
