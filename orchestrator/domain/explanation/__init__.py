"""Builds the answer of `why`."""
