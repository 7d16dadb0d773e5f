"""Passes of the supervisor over very many jobs of a Slurm. See __main__.py."""
