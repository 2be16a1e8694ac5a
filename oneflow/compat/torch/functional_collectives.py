"""`torch.distributed._functional_collectives`: collectives whose results are new tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from oneflow import distributed
from oneflow.compat.torch.device_mesh import DeviceMesh
from oneflow.core.errors import CallError
from oneflow.distributed import ReduceOp
from oneflow.distributed.process_groups import ALL_RANKS, ProcessGroup
from oneflow.functional.concat_split import cat, chunk
from oneflow.functional.creation import empty
from oneflow.tensor.tensor import Tensor

__all__ = [
    "all_gather_tensor",
    "all_reduce",
    "all_to_all_single",
    "broadcast",
    "reduce_scatter_tensor",
    "wait_tensor",
]

Group: TypeAlias = "ProcessGroup | DeviceMesh | tuple[DeviceMesh, int] | None"
OPS = {"sum": ReduceOp.SUM, "avg": ReduceOp.AVG, "max": ReduceOp.MAX, "min": ReduceOp.MIN}


def _group(group: Group) -> ProcessGroup:
    if isinstance(group, DeviceMesh):
        return group.get_group()
    if isinstance(group, tuple):
        return group[0].get_group(group[1])
    return ALL_RANKS if group is None else group


def _op(name: str) -> ReduceOp:
    if name.lower() not in OPS:
        raise CallError(f"a reduction is one of {', '.join(OPS)}, got {name!r}")
    return OPS[name.lower()]


def wait_tensor(tensor: Tensor) -> Tensor:
    """Return the tensor: it is there."""
    return tensor


def all_reduce(self: Tensor, reduceOp: str, group: Group = None, tag: str = "") -> Tensor:
    """Return the reduction over all ranks."""
    made = self.clone()
    distributed.all_reduce(made, _op(reduceOp), group=_group(group))
    return made


def broadcast(self: Tensor, src: int, group: Group = None, tag: str = "") -> Tensor:
    """Return rank `src`'s tensor."""
    made = self.clone()
    distributed.broadcast(made, src, group=_group(group))
    return made


def all_gather_tensor(
    self: Tensor, gather_dim: int = 0, group: Group = None, tag: str = ""
) -> Tensor:
    """Return the tensors of all ranks, one after the other along a dim."""
    ranks = _group(group)
    parts = [empty(*self.shape, dtype=self.dtype) for _ in range(ranks.size())]
    distributed.all_gather(parts, self.contiguous(), group=ranks)
    return cat(parts, dim=gather_dim)


def reduce_scatter_tensor(
    self: Tensor, reduceOp: str, scatter_dim: int = 0, group: Group = None, tag: str = ""
) -> Tensor:
    """Return this rank's equal part, along a dim, of the reduction."""
    ranks = _group(group)
    parts = [x.contiguous() for x in chunk(self, ranks.size(), scatter_dim)]
    made = empty(*parts[0].shape, dtype=self.dtype)
    distributed.reduce_scatter(made, parts, _op(reduceOp), group=ranks)
    return made


def all_to_all_single(
    self: Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Group = None,
    tag: str = "",
) -> Tensor:
    """Return the rows that came from each rank, one after the other."""
    count = self.shape[0] if output_split_sizes is None else sum(output_split_sizes)
    made = empty(count, *self.shape[1:], dtype=self.dtype)
    came = None if output_split_sizes is None else list(output_split_sizes)
    sent = None if input_split_sizes is None else list(input_split_sizes)
    distributed.all_to_all_single(made, self.contiguous(), came, sent, group=_group(group))
    return made
