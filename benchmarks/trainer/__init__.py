"""How quick the bundled trainer is, beside loops that people write by hand."""
