"""How agents find each other: rounds of one document in a shared store."""
