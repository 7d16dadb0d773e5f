"""Checks of the service and its clusters; each says what to do next."""
