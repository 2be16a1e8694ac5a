"""Layers that the models share: embeddings of all fields, and what crosses features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clicks import FIELDS

import oneflow as flow
from oneflow import nn

one = flow.one_embedding


@dataclass(frozen=True)
class Store:
    """Where the rows of embeddings lie.

    path: a folder, "" for a temporary one.  budget_mb: MiB of rows in memory, the others on the
    disk; 0: all in memory.  size_factor: 1 + the number of the optimizer's states.
    """

    path: str = ""
    budget_mb: int = 0
    capacity: int = 1_000_000
    size_factor: int = 2

    def options(self) -> dict[str, object]:
        if self.budget_mb:
            return one.make_cached_ssd_store_options(
                self.budget_mb, self.path, self.capacity, self.size_factor
            )
        return one.make_device_mem_store_options(self.path, self.capacity, self.size_factor)


def embedding(store: Store, widths: Sequence[int], name: str = "fields") -> nn.Module:
    """Ids (rows, FIELDS) -> (rows, FIELDS, sum of widths), a table for each field."""
    columns = [one.make_column_options(one.make_normal_initializer(0.0, 0.05)) for _ in widths]
    return one.MultiTableMultiColumnEmbedding(
        name, list(widths), flow.float, flow.int64,
        [one.make_table_options(columns)] * FIELDS, store.options(),
    )  # fmt: skip


def dense(inputs: int, hidden: Sequence[int], outputs: int = 1) -> nn.Module:
    """Dense layers with ReLU between them."""
    return nn.FusedMLP(inputs, list(hidden), outputs, skip_final_activation=True)


def pairs(vectors: flow.Tensor) -> flow.Tensor:
    """Sum of the dot products of all pairs of vectors: (rows, n, width) -> (rows, 1)."""
    return flow._C.fused_dot_feature_interaction([vectors], pooling="sum")


class Cross(nn.Module):
    """Layers of a cross network: x = x0 * (W x + b) + x (DCN v2: Wang and others, WWW 2021)."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(depth)])

    def forward(self, x0: flow.Tensor) -> flow.Tensor:
        x = x0
        for layer in self.layers:
            x = flow._C.fused_cross_feature_interaction(x, layer.weight, x0, layer.bias, "matrix")
        return x


class Compressed(nn.Module):
    """Compressed interaction network: products of all pairs of two layers' vectors, mixed to fewer
    (xDeepFM: Lian and others, KDD 2018)."""

    def __init__(self, count: int, sizes: Sequence[int]) -> None:
        super().__init__()
        before = [count, *sizes[:-1]]
        self.mixes = nn.ModuleList(
            [nn.Linear(count * b, s, bias=False) for b, s in zip(before, sizes, strict=True)]
        )

    def forward(self, vectors: flow.Tensor) -> flow.Tensor:
        """(rows, n, width) -> (rows, sum of sizes): each vector of each layer added up."""
        x, sums = vectors, []
        for mix in self.mixes:
            products = vectors.unsqueeze(2) * x.unsqueeze(1)
            x = mix(products.flatten(1, 2).transpose(1, 2)).transpose(1, 2)
            sums.append(x.sum(2))
        return flow.cat(sums, 1)
