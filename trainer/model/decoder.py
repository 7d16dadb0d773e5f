"""A Llama-style decoder: RMSNorm, rotary positions, causal attention, SwiGLU, untied head.

Tensor names carry their shape:
    B sequences   T tokens of a sequence   D model width   H heads   K width of a head   F feed-forward width
    V vocabulary

It holds no buffer, so that `to_empty` after construction on the meta device leaves nothing but parameters to write.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.contract.shapes import Shape
from trainer.data.seeds import seed_of

_ROPE_BASE = 10_000.0  # Su et al., RoFormer, 2021
_INIT_STD = 0.02  # GPT-2


class Decoder(nn.Module):
    """Tokens [B, T] to logits [B, T, V]."""

    def __init__(self, shape: Shape, *, vocab_size: int, dropout: float) -> None:
        super().__init__()
        self.head_width = shape.width // shape.heads
        self.embed = nn.Embedding(vocab_size, shape.width)
        self.blocks = nn.ModuleList(Block(shape, dropout) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width, eps=1e-5)
        self.head = nn.Linear(shape.width, vocab_size, bias=False)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        x_BTD = self.embed(tokens_BT)
        rotation_2TK = build_rotation(tokens_BT.shape[1], self.head_width, tokens_BT.device)
        for block in self.blocks:
            x_BTD = block(x_BTD, rotation_2TK)
        logits_BTV: Tensor = self.head(self.norm(x_BTD))
        return logits_BTV


class Block(nn.Module):
    def __init__(self, shape: Shape, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.width, eps=1e-5)
        self.attention = Attention(shape, dropout)
        self.feed_forward_norm = nn.RMSNorm(shape.width, eps=1e-5)
        self.feed_forward = FeedForward(shape)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_BTD: Tensor, rotation_2TK: Tensor) -> Tensor:
        x_BTD = x_BTD + self.dropout(self.attention(self.attention_norm(x_BTD), rotation_2TK))
        y_BTD: Tensor = x_BTD + self.dropout(self.feed_forward(self.feed_forward_norm(x_BTD)))
        return y_BTD


class Attention(nn.Module):
    def __init__(self, shape: Shape, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = shape.heads, dropout
        self.qkv = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.out = nn.Linear(shape.width, shape.width, bias=False)

    def forward(self, x_BTD: Tensor, rotation_2TK: Tensor) -> Tensor:
        q_BHTK, k_BHTK, v_BHTK = (
            part_BTD.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part_BTD in self.qkv(x_BTD).chunk(3, dim=-1)
        )
        y_BHTK = F.scaled_dot_product_attention(
            rotate(q_BHTK, rotation_2TK),
            rotate(k_BHTK, rotation_2TK),
            v_BHTK,
            is_causal=True,
            dropout_p=self.dropout if self.training else 0.0,
        )
        y_BTD: Tensor = self.out(y_BHTK.transpose(1, 2).flatten(2))
        return y_BTD


class FeedForward(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate = nn.Linear(shape.width, shape.feed_forward, bias=False)
        self.up = nn.Linear(shape.width, shape.feed_forward, bias=False)
        self.down = nn.Linear(shape.feed_forward, shape.width, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        y_BTD: Tensor = self.down(F.silu(self.gate(x_BTD)) * self.up(x_BTD))
        return y_BTD


def build_rotation(length: int, head_width: int, device: torch.device) -> Tensor:
    """Cosines and sines of the rotary positions, [2, T, K], always in float32."""
    frequency_K = _ROPE_BASE ** (-torch.arange(0, head_width, 2, device=device, dtype=torch.float32) / head_width)
    angle_TK = torch.outer(torch.arange(length, device=device, dtype=torch.float32), frequency_K).repeat(1, 2)
    return torch.stack((angle_TK.cos(), angle_TK.sin()))


def rotate(x_BHTK: Tensor, rotation_2TK: Tensor) -> Tensor:
    cos_TK, sin_TK = rotation_2TK.to(x_BHTK.dtype)
    first, second = x_BHTK.chunk(2, dim=-1)
    turned_BHTK: Tensor = x_BHTK * cos_TK + torch.cat((-second, first), dim=-1) * sin_TK
    return turned_BHTK


def build_initial(name: str, shape: torch.Size, *, seed: int, layers: int) -> Tensor:
    """The full initial value of the parameter `name`, on the CPU: a function of seed and name."""
    if len(shape) == 1:
        gains: Tensor = torch.ones(shape)  # only norms have vectors
        return gains
    ends_residual = name.endswith(("attention.out.weight", "feed_forward.down.weight"))
    std = _INIT_STD / math.sqrt(2 * layers) if ends_residual else _INIT_STD
    generator = torch.Generator().manual_seed(seed_of("init", seed, name))
    value: Tensor = torch.randn(shape, generator=generator) * std
    return value
