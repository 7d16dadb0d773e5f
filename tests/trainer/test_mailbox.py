"""The store by which ranks hand in what they have written. Its name differs among the supported releases of torch."""

import torch.distributed as dist

from trainer.worker.torch_compat import store_of_the_group


def test_the_store_of_the_group_is_found():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        store_of_the_group().set("letter", "read")
        assert store_of_the_group().get("letter") == b"read"
    finally:
        dist.destroy_process_group()
