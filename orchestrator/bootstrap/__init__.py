"""Wires the service: the only package that names adapters. Start with service.py."""
