"""Jobs and attempts: states, requests, events, and the launch plan."""
