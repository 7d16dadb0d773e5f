"""The bundled trainer and the elastic agent. Nothing in here imports the orchestrator."""
