"""Kill or stop a real service before and after each of its effects. `cell` runs one case, `verdict` checks it."""
