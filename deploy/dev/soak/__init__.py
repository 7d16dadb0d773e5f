"""The soak: real training jobs under random faults. `stage` runs, `faults` strikes, `verdict` judges."""
