"""Answers questions in models of the wire. Changes nothing."""
