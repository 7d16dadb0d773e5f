"""How agents meet: one document in a shared store, and the rounds that it counts."""
