"""Real training jobs under random faults. `stage` runs them, `faults` strikes, `verdict` checks the result."""
