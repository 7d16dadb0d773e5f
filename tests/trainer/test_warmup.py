"""The warm-up of a spare worker does not change the process."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from pathlib import Path

import torch
import torch.distributed as dist

from trainer.loop.warmup import warm_up
from trainer.snapshot.state_reading import read_state


def test_a_warmup_restores_trains_and_leaves_no_trace(tmp_path, monkeypatch):
    restored = []

    def read_and_record(state, restore, waits):
        read_state(state, restore, waits)
        restored.append((restore.source, state.num_moments > 0))

    monkeypatch.setattr("trainer.loop.warmup.read_state", read_and_record)
    files = set(Path("/proc/self/fd").iterdir())
    generator, threads, filters = torch.get_rng_state(), torch.get_num_threads(), list(warnings.filters)
    environ, alive, excepthook = dict(os.environ), set(threading.enumerate()), sys.excepthook
    warm_up(tmp_path / "warmup")
    assert restored == [("memory", True), ("disk", True)]
    assert set(Path("/proc/self/fd").iterdir()) <= files  # threads of earlier tests may close some
    assert not list(tmp_path.iterdir())
    assert torch.equal(torch.get_rng_state(), generator)
    assert torch.get_num_threads() == threads
    assert (warnings.filters, dict(os.environ)) == (filters, environ)
    assert set(threading.enumerate()) <= alive
    assert sys.excepthook is excepthook
    assert not dist.is_initialized()


def test_a_warmup_does_not_start_cuda(tmp_path, monkeypatch):
    def start():
        raise AssertionError("a spare has no device of its own yet")

    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda._lazy_init", start)
    warm_up(tmp_path / "warmup")
    assert not torch.cuda.is_initialized()
