"""A decoder of any known family over rows that are tokens of many sequences.

Products are cut between ranks as Megatron-LM does (Shoeybi et al., arXiv:1909.08053): those into a
block by columns, those out of it by rows, so that a block ends in one sum over the ranks. Heads,
and the cache of their keys and values, are cut alike; the table of words is cut by words.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from oneflow.core.errors import ModelError
from oneflow.core.sbp import BROADCAST, Split
from oneflow.functional.concat_split import cat, chunk
from oneflow.functional.gather_scatter import index_select
from oneflow.functional.reduction import argmax
from oneflow.nn import functional as F
from oneflow.nn.module import Module
from oneflow.nn.modules.containers import ModuleList
from oneflow.nn.parameter import Parameter
from oneflow.ops.attention import paged_attention
from oneflow.serving.language.config import DecoderConfig
from oneflow.serving.language.names import NAMES, Names
from oneflow.serving.language.rotation import angles
from oneflow.serving.language.weights import Piece, Ranks, Weights
from oneflow.tensor.tensor import Tensor


class CacheSize(NamedTuple):
    """The size of a cache. blocks: for all sequences together. block: tokens of a block."""

    blocks: int
    block: int


class Rows(NamedTuple):
    """Positions of the tokens of a step; see the op paged_attention.

    turns: cosines and sines of the positions, where the family has them.
    """

    tables: Tensor
    lengths: Tensor
    turns: tuple[Tensor, Tensor] | None


class _Build(NamedTuple):
    """The surroundings in which layers are made."""

    config: DecoderConfig
    weights: Weights
    names: Names

    @property
    def ranks(self) -> Ranks:
        return self.weights.ranks


class Projection(Module):
    """A dense layer: x (..., in) -> x @ weight.T + bias.

    split: 0: the ranks share its outputs; 1: its inputs, so that the ranks' sums are added up.
    """

    def __init__(
        self, build: _Build, piece: Piece, split: int, shape: tuple[int, int], has_bias: bool
    ) -> None:
        super().__init__()
        self.adds = split == 1 and build.ranks.size > 1
        self.weight = build.weights.get(piece, split, shape)
        bias = None
        if has_bias:
            own = piece._replace(name=piece.name.removesuffix("weight") + "bias", is_turned=False)
            bias = build.weights.get(own, 0 if split == 0 else None, shape[:1])
        self.register_parameter("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        if not self.adds:
            return F.linear(x, self.weight, self.bias)
        whole = F.linear(x, self.weight).to_global(sbp=BROADCAST)
        return whole if self.bias is None else whole + self.bias


class Norm(Module):
    def __init__(self, build: _Build, name: str) -> None:
        super().__init__()
        self.width, self.eps = build.config.width, build.config.eps
        self.weight = build.weights.get(Piece(f"{name}.weight"), None, (self.width,))
        bias = None
        if not build.config.is_rms:
            bias = build.weights.get(Piece(f"{name}.bias"), None, (self.width,))
        self.register_parameter("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.bias is None:
            return F.rms_norm(x, (self.width,), self.weight, self.eps)
        return F.layer_norm(x, (self.width,), self.weight, self.bias, self.eps)


class Attention(Module):
    def __init__(self, build: _Build, layer: int, cache: CacheSize) -> None:
        super().__init__()
        config, names = build.config, build.names
        self.heads, self.shared, self.depth = config.heads, config.shared, config.depth
        self.window = config.windows[layer]
        wide, narrow = self.heads * self.depth, self.shared * self.depth
        for name, size in (("q", wide), ("k", narrow), ("v", narrow)):
            piece = names.piece(name, layer)
            has_bias = config.has_qkv_bias
            setattr(self, name, Projection(build, piece, 0, (size, config.width), has_bias))
        piece = names.piece("out", layer)
        self.out = Projection(build, piece, 1, (config.width, wide), config.has_out_bias)
        own = build.ranks.part(self.shared)
        shape = (cache.blocks, own.stop - own.start, cache.block, self.depth)
        for name in ("keys", "values"):
            self.register_buffer(name, build.ranks.put(np.zeros(shape, np.float32), Split(1)))

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        count = x.shape[0]
        q = self.q(x).view(count, self.heads, self.depth)
        k = self.k(x).view(count, self.shared, self.depth)
        v = self.v(x).view(count, self.shared, self.depth)
        if rows.turns is not None:
            q, k = turned(q, *rows.turns), turned(k, *rows.turns)
        seen, _, _ = paged_attention(
            q,
            k,
            v,
            self.keys,
            self.values,
            rows.tables,
            rows.lengths,
            scale=self.depth**-0.5,
            window=self.window,
        )
        out: Tensor = self.out(seen.view(count, self.heads * self.depth))
        return out


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions: halves of each head as real and imaginary parts."""
    a, b = chunk(x, 2, -1)
    return cat([a * cos - b * sin, b * cos + a * sin], -1)


class FeedForward(Module):
    def __init__(self, build: _Build, layer: int) -> None:
        super().__init__()
        config, names = build.config, build.names
        width, inner, has_bias = config.width, config.inner, config.has_inner_bias
        self.activation = config.activation
        self.up = Projection(build, names.piece("up", layer), 0, (inner, width), has_bias)
        self.gate = None
        if config.is_gated:
            self.gate = Projection(build, names.piece("gate", layer), 0, (inner, width), has_bias)
        self.down = Projection(build, names.piece("down", layer), 1, (width, inner), has_bias)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.up(x)
        found = self._active(found) if self.gate is None else self._active(self.gate(x)) * found
        out: Tensor = self.down(found)
        return out

    def _active(self, x: Tensor) -> Tensor:
        match self.activation:
            case "silu":
                return F.silu(x)
            case "relu":
                return F.relu(x)
            case "gelu":
                return F.gelu(x)
            case _:
                return F.gelu(x, approximate="tanh")


class Layer(Module):
    def __init__(self, build: _Build, layer: int, cache: CacheSize) -> None:
        super().__init__()
        self.before = Norm(build, build.names.norm("before", layer))
        self.attention = Attention(build, layer, cache)
        self.between = Norm(build, build.names.norm("between", layer))
        self.inner = FeedForward(build, layer)

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        x = x + self.attention(self.before(x), rows)
        out: Tensor = x + self.inner(self.between(x))
        return out


class Decoder(Module):
    """A decoder with the weights of a folder. Raises ModelError if they do not fit."""

    def __init__(self, config: DecoderConfig, weights: Weights, cache: CacheSize) -> None:
        super().__init__()
        names = NAMES[config.family](weights)
        build = _Build(config, weights, names)
        _check_ranks(config, build.ranks)
        self.config, self.ranks = config, build.ranks
        table = (config.words, config.width)
        self.words = weights.get(Piece(names.words), 0, table)
        self.register_parameter("places", None)
        if config.rotation is None:
            shape = (config.positions, config.width)
            self.places = weights.get(Piece(names.places), None, shape)
        else:
            turns = angles(config.rotation, config.depth, config.positions)
            self.register_buffer("turns", build.ranks.put(turns, BROADCAST))
        self.layers = ModuleList([Layer(build, i, cache) for i in range(config.layers)])
        self.last = Norm(build, names.last)
        is_tied = config.is_tied or names.head not in weights
        self.head: Parameter = self.words if is_tied else weights.get(Piece(names.head), 0, table)

    def forward(
        self, words: Tensor, lengths: Tensor, tables: Tensor, wanted: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Compute the likeliest next word, and the scores of all words, behind the rows `wanted`.

        words, lengths: (rows,). tables: (rows, most). wanted: (any,), numbers of rows.
        """
        at = (lengths - 1).clamp(min=0)
        x, turns = F.embedding(words, self.words), None
        if self.ranks.size > 1:
            x = x.to_global(sbp=BROADCAST)
        if self.places is not None:
            x = x + F.embedding(at, self.places)
        else:
            found = index_select(self.turns, 0, at)
            cos, sin = chunk(found.view(at.shape[0], 1, self.config.depth), 2, -1)
            turns = (cos, sin)
        rows = Rows(tables, lengths, turns)
        for layer in self.layers:
            x = layer(x, rows)
        scores = F.linear(self.last(index_select(x, 0, wanted)), self.head)
        if self.ranks.size > 1:
            scores = scores.to_global(sbp=BROADCAST)
        return argmax(scores, -1), scores


def _check_ranks(config: DecoderConfig, ranks: Ranks) -> None:
    if config.shared % ranks.size or config.heads % ranks.size:
        raise ModelError(
            f"{config.heads} heads, {config.shared} of keys, cannot be divided by {ranks.size} "
            "ranks; serve on fewer"
        )
