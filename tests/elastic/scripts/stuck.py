"""A plain script of two ranks that reports nothing. In generation 1 rank 1 hangs in the way that the argument names."""

import ctypes
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 4:
            time.sleep(600)
        return torch.ones(4)


def sleep():
    time.sleep(600)


def load():
    for _ in DataLoader(Numbers(), batch_size=2, num_workers=2):
        pass


def call():  # locks a mutex that this thread holds already: no signal ends the wait
    lock = ctypes.create_string_buffer(64)
    ctypes.CDLL(None).pthread_mutex_lock(lock)
    ctypes.CDLL(None).pthread_mutex_lock(lock)


def skip():  # this rank is one all_reduce ahead
    dist.barrier()


dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 1))
print("begins", flush=True)
for step in range(3):
    if step == 2 and os.environ["ORCHESTRATOR_GENERATION"] == "1" and dist.get_rank() == 1:
        {"sleep": sleep, "load": load, "call": call, "skip": skip}[sys.argv[1]]()
    model(torch.ones(2, 4)).sum().backward()
    dist.all_reduce(torch.ones(1))
dist.destroy_process_group()
