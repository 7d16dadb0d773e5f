"""Roles, the routes that they may use, and the URLs that a job may name."""
