"""How long a snapshot delays training: ours in background and foreground, `torch.save` and `dcp.save`."""
