"""How `python -m benchmarks` writes docs/benchmarks.md."""
