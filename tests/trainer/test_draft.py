"""A model that was built on the CPU is freed once its values have been written."""

import weakref

import pytest
import torch

from tests.trainer.alone import train_alone
from trainer import train
from trainer.model import initial


@pytest.mark.parametrize("own_init", [False, True], ids=["on meta", "on the CPU"])
def test_training_keeps_no_initial_values(tmp_path, monkeypatch, own_init):
    torch.optim.AdamW([torch.zeros(1)])  # a process's first optimizer imports modules that keep their callers' frames
    drafts, alive = [], []
    make, loop = initial.Draft, train._Loop.train

    def draft(*arguments):
        made = make(*arguments)
        drafts.append(weakref.ref(made))
        drafts.append(weakref.ref(made.write))
        return made

    def look_and_train(own):
        alive.extend(each() for each in drafts)
        return loop(own)

    monkeypatch.setattr(initial, "Draft", draft)
    monkeypatch.setattr(train._Loop, "train", look_and_train)
    train_alone(tmp_path, steps=1, task_config={"width": 8, "own_init": own_init})
    assert alive == [None, None]
