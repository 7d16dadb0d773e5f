"""Protocols between the core and its adapters. Only bootstrap names the adapters."""
