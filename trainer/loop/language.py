"""The bundled task: a decoder learns to predict the next token of a text.

A sample is a window of `seq_len` + 1 tokens; a microbatch is tokens_BT, [B, seq_len + 1].
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.contract.config import TrainerConfig
from trainer.contract.shapes import SHAPES
from trainer.contract.workload import preset_shape
from trainer.data.sample_order import draw_windows
from trainer.data.source import Read, Request
from trainer.data.token_files import open_data
from trainer.loop.flops import flops_per_token
from trainer.model.decoder import Decoder, build_initial
from trainer.model.initial import Digests, Draft
from trainer.parallel.materialize import initialize


class Language:
    """Source, model and loss of next-token prediction. Raises DataError when there is nothing to read."""

    workers = 0  # a microbatch is read in microseconds, from mapped memory

    def __init__(self, config: TrainerConfig) -> None:
        self._config = config
        self._data = open_data(config)
        self._num_windows = self._data.num_windows(config.seq_len)
        self.micro_batch = config.sequences_per_microbatch

    @property
    def fingerprint(self) -> dict[str, object]:
        return self._data.fingerprint

    @property
    def flops_per_sample(self) -> float:
        shape = preset_shape(self._config.preset, self._data.vocab_size)
        return self._config.seq_len * flops_per_token(shape, self._config.seq_len)

    def read(self, request: Request) -> Read:
        windows_B = draw_windows(
            first=request.first, count=request.count, num_windows=self._num_windows, seed=self._config.seed
        )
        return Read(torch.from_numpy(self._data.read_windows(windows_B, self._config.seq_len)))

    def draft(self) -> Draft:
        with torch.device("meta"):
            model = Decoder(SHAPES[self._config.preset], vocab_size=self._data.vocab_size, dropout=self._config.dropout)
        return Draft(model, partial(_initialize, self._config.seed))

    def loss(self, model: nn.Module, tokens_BT: object, count: int) -> tuple[Tensor, float]:
        """The sum of the cross-entropy over all tokens, in nats, and the number of tokens."""
        assert isinstance(tokens_BT, Tensor)
        logits_BTV = model(tokens_BT[:, :-1])
        logits_BTV = logits_BTV.to(torch.promote_types(logits_BTV.dtype, torch.float32))
        targets_BT = tokens_BT[:, 1:]
        total = F.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten(), reduction="sum")
        return total, float(targets_BT.numel())


def _initialize(seed: int, model: nn.Module, names: Collection[str]) -> Digests:
    """Write all parameters. Every buffer is in the snapshot, and values from a seed need no digest."""
    assert isinstance(model, Decoder)
    if names:
        initialize(model, partial(build_initial, seed=seed, layers=len(model.blocks)))
    return {}
