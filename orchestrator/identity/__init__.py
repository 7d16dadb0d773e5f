"""Who asks, and what is kept from everybody: tokens, sessions, agents, secrets."""
