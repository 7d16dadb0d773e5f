"""Records what client, agents and service say to each other in real jobs' lives: `python -m deploy.dev.traffic`."""
