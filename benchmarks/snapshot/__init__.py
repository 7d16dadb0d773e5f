"""How long a snapshot holds training up: ours in the background and waiting, `torch.save` and `dcp.save`."""
