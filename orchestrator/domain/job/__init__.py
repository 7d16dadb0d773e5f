"""Jobs and attempts: their states, what is requested of them, their events, and the launch of an attempt."""
