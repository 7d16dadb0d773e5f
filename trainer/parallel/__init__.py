"""How a model is spread over ranks: DDP, FSDP2, precision, recomputation, optimizer."""
