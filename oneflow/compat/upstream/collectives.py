"""Collectives of `flow._C`: as those of `flow.comm`, but they return their results."""

from __future__ import annotations

from collections.abc import Sequence

from oneflow import comm
from oneflow.core.device import DeviceLike
from oneflow.core.dtype import DType
from oneflow.functional.elementwise import clone
from oneflow.tensor.tensor import Tensor

__all__ = [
    "comm_broadcast",
    "local_all_gather",
    "local_all_reduce",
    "local_reduce",
    "local_reduce_scatter",
    "recv",
    "send",
]


def local_all_reduce(x: Tensor, inplace: bool = False) -> Tensor:
    """The sum of the tensors of all ranks."""
    out = x if inplace else clone(x)
    comm.all_reduce(out)
    return out


def local_reduce(x: Tensor, dst: int = 0, inplace: bool = True) -> Tensor:
    """The sum of the tensors of all ranks, on rank dst."""
    out = x if inplace else clone(x)
    comm.reduce(out, dst)
    return out


def local_all_gather(output: Tensor, input: Tensor) -> Tensor:
    """`comm.all_gather_into_tensor`; returns the output."""
    comm.all_gather_into_tensor(output, input)
    return output


def local_reduce_scatter(output: Tensor, input: Tensor) -> Tensor:
    """`comm.reduce_scatter_tensor`; returns the output."""
    comm.reduce_scatter_tensor(output, input)
    return output


def comm_broadcast(
    inputs: Tensor | Sequence[Tensor], src_rank: int = 0, inplace: bool = True
) -> Tensor | list[Tensor]:
    """The tensors of one rank, on all."""
    many = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    outs = many if inplace else [clone(x) for x in many]
    for x in outs:
        comm.broadcast(x, src_rank)
    return outs[0] if isinstance(inputs, Tensor) else outs


def send(input: Tensor, dst: int, send_meta: bool = True) -> None:
    """`comm.send`."""
    comm.send(input, dst, send_meta)


def recv(
    src: int,
    shape: Sequence[int] | None = None,
    dtype: DType | None = None,
    device: DeviceLike | None = None,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """`comm.recv`."""
    found: Tensor = comm.recv(src, shape, dtype, device, out=out)
    return found
