"""The torchx scheduler `orchestrator`: jobs of the service through `torchx run|status|log|list|describe|cancel`."""
