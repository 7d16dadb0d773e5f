"""Real training jobs under random faults. `stage` runs them, `faults` injects faults, `verdict` checks the result."""
