"""The sizes of the bundled decoder, by preset."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Shape:
    width: int
    layers: int
    heads: int
    feed_forward: int


# 1b and 8b have the widths of Llama 3.2 1B and Llama 3 8B, but full attention heads and the vocabulary of the data.
SHAPES = {
    "nano": Shape(width=128, layers=4, heads=4, feed_forward=384),
    "micro": Shape(width=384, layers=6, heads=6, feed_forward=1024),
    "124m": Shape(width=768, layers=12, heads=12, feed_forward=3072),
    "1b": Shape(width=2048, layers=16, heads=32, feed_forward=8192),
    "8b": Shape(width=4096, layers=32, heads=32, feed_forward=14336),
}
