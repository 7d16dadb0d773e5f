"""Decides what to do about a job. decide.py lists the rules, which read only a Situation."""
