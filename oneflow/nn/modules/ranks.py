"""Layers that know of other ranks and devices, under upstream's and PyTorch's names."""

from __future__ import annotations

from typing import Any

from oneflow import comm, cuda
from oneflow.core.dtype import float32, int64
from oneflow.core.errors import ShapeError
from oneflow.core.no_effect import without_effect
from oneflow.functional import arithmetic, creation
from oneflow.functional.elementwise import cast, clone
from oneflow.functional.gather_scatter import index_select, scatter
from oneflow.functional.shaping import reshape
from oneflow.functional.sort_and_search import topk
from oneflow.nn.module import Module
from oneflow.tensor.creation_like import layout_of
from oneflow.tensor.grad_mode import no_grad
from oneflow.tensor.tensor import Tensor


class AllReduce(Module):
    """The sum of the local tensors of all ranks. parallel_conf_str is accepted: all take part."""

    def __init__(self, parallel_conf_str: str = "") -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        out = clone(x)
        comm.all_reduce_in(out, "sum", f"nn.AllReduce of {x.meta}")
        return out


class DataParallel(Module):
    """The module in `.module`, on one device: several are for one process each
    (`nn.parallel.DistributedDataParallel`). The other arguments change nothing.
    """

    def __init__(
        self, module: Module, device_ids: object = None, output_device: object = None, dim: int = 0
    ) -> None:
        super().__init__()
        self.module = module
        if cuda.device_count() > 1:
            without_effect("nn.DataParallel", "a process computes on one device here")

    def forward(self, *inputs: object, **kwargs: object) -> Any:
        return self.module(*inputs, **kwargs)


class DistributedPariticalFCSample(Module):
    """Rows of a classifier's weight for a batch: those of its labels, and random ones up to
    num_sample (An and others, ICCV Workshops 2021). The name is upstream's.

    Gives (labels among the rows, numbers of the rows, the rows), from weight (classes, size) and
    integer labels (n,). Raises ShapeError for more rows than classes.
    """

    def __init__(self, num_sample: int) -> None:
        super().__init__()
        self.num_sample = num_sample

    def forward(self, weight: Tensor, label: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return distributed_partial_fc_sample(weight, label, self.num_sample)


def distributed_partial_fc_sample(
    weight: Tensor, label: Tensor, num_sample: int
) -> tuple[Tensor, Tensor, Tensor]:
    """See `nn.DistributedPariticalFCSample`."""
    classes = weight.shape[0]
    if not 0 < num_sample <= classes:
        raise ShapeError(
            f"distributed_partial_fc_sample: {num_sample} rows of a weight {weight.meta}"
        )
    with no_grad():
        where = layout_of(weight)
        places = cast(reshape(label, (-1,)), int64)
        ones = creation.ones(tuple(places.shape), dtype=float32, **layout_of(label))
        wanted = scatter(creation.zeros((classes,), dtype=float32, **where), 0, places, ones)
        draw = arithmetic.add(wanted, creation.rand((classes,), dtype=float32, **where))
        rows = topk(draw, num_sample, 0).indices.sort(0)[0]
        numbers = creation.arange(0, num_sample, 1, dtype=int64, **layout_of(rows))
        missing = creation.full((classes,), -1, dtype=int64, **where)
        mapped = index_select(scatter(missing, 0, rows, numbers), 0, places)
    return (
        cast(reshape(mapped, tuple(label.shape)), label.dtype),
        rows,
        index_select(weight, 0, rows),
    )
