"""Webhooks, and the delivery of their messages."""
