"""Supervision for a user's own script; `trainer.supervised` is its public interface."""
