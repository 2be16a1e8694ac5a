"""Generators of devices, placements and SBP, on one rank or all ranks of the job."""

from __future__ import annotations

import os
import unittest
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np

from oneflow import cuda, sbp
from oneflow.core.errors import ArgumentError
from oneflow.core.placement import Placement
from oneflow.env import get_node_size, get_world_size
from oneflow.test_utils.automated_test_util.generators import generator, stream


def devices() -> list[str]:
    """Return the kinds of devices to test: GPUs unless there are none or ONEFLOW_TEST_CPU_ONLY."""
    has_gpu = not os.environ.get("ONEFLOW_TEST_CPU_ONLY") and cuda.is_available()
    return ["cpu", "cuda"] if has_gpu else ["cpu"]


class random_device(generator):
    """ "cpu" or "cuda", if there are GPUs to test."""

    def draw(self) -> Any:
        return stream.choice(devices())


class cpu_device(generator):
    """ "cpu"."""

    def draw(self) -> Any:
        return "cpu"


class gpu_device(generator):
    """ "cuda"; skips the test where there are no GPUs to test."""

    def draw(self) -> Any:
        if "cuda" not in devices():
            raise unittest.SkipTest("needs a GPU, and is not run under ONEFLOW_TEST_CPU_ONLY")
        return "cuda"


class _All(generator):
    """A generator of all values at once, over which a test may loop."""

    def __len__(self) -> int:
        return len(self.value())

    def __getitem__(self, key: int) -> Any:
        return self.value()[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.value())


class all_placement(_All):
    """All ranks in a row, and as a grid of hosts and their ranks, on each kind of device."""

    kinds: Sequence[str] | None = None

    def draw(self) -> Any:
        ranks = np.arange(get_world_size())
        grids = ranks, ranks.reshape(get_node_size(), -1)
        kinds = devices() if self.kinds is None else self.kinds
        return [Placement(kind, grid) for kind, grid in product(kinds, grids)]


class all_cpu_placement(all_placement):
    """The placements of `all_placement` on CPUs."""

    kinds = ("cpu",)


class all_cuda_placement(all_placement):
    """The placements of `all_placement` on GPUs."""

    kinds = ("cuda",)


class random_placement(all_placement):
    """One of the placements of `all_placement`."""

    def draw(self) -> Any:
        return stream.choice(super().draw())


class random_cpu_placement(random_placement):
    """One of the placements on CPUs."""

    kinds = ("cpu",)


class random_gpu_placement(random_placement):
    """One of the placements on GPUs."""

    kinds = ("cuda",)


class all_sbp(_All):
    """Every SBP of a tensor, as tuples with one entry for each axis of the hierarchy.

    placement: Tells the number of axes, else `dim` does.  max_dim: Dims of the tensor that may be
    split, or `valid_split_axis` of them; 0: of a scalar, which is broadcast.
    """

    def __init__(
        self,
        placement: random_placement | Placement | None = None,
        dim: int = 1,
        max_dim: int = 0,
        except_split: bool = False,
        except_broadcast: bool = False,
        except_partial_sum: bool = False,
        valid_split_axis: int | Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        if isinstance(placement, generator):
            placement = placement.value()
        if placement is not None and not isinstance(placement, Placement):
            raise ArgumentError(f"all_sbp: placement is a placement, got {placement!r}")
        self.axes = dim if placement is None else len(placement.hierarchy)
        valid = range(max_dim) if valid_split_axis is None else valid_split_axis
        dims = [valid] if isinstance(valid, int) else list(valid)
        self.entries: list[Any] = []
        if not except_split:
            self.entries += [sbp.split(i) for i in dims if i < max_dim]
        if not except_broadcast or not max_dim:
            self.entries.append(sbp.broadcast)
        if not except_partial_sum and max_dim:
            self.entries.append(sbp.partial_sum)

    def draw(self) -> Any:
        return list(product(self.entries, repeat=self.axes))


class random_sbp(all_sbp):
    """One of the SBP of `all_sbp`."""

    def draw(self) -> Any:
        return stream.choice(super().draw())
