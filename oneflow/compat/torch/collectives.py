"""`torch.distributed.nn`: collectives through which gradients flow."""

from __future__ import annotations

from collections.abc import Sequence

from oneflow import distributed
from oneflow.autograd.function import Function, FunctionCtx
from oneflow.core.errors import OneFlowError
from oneflow.distributed import ReduceOp
from oneflow.functional.creation import empty_like, zeros_like
from oneflow.tensor.tensor import Tensor

__all__ = ["all_gather", "all_reduce", "broadcast", "reduce_scatter"]


class _AllReduce(Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, op: ReduceOp) -> Tensor:
        vars(ctx)["op"] = op
        out = x.clone()
        distributed.all_reduce(out, op)
        return out

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor, None]:
        found = grad.clone()
        distributed.all_reduce(found, vars(ctx)["op"])
        return found, None


class _AllGather(Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor) -> tuple[Tensor, ...]:
        parts = [empty_like(x) for _ in range(distributed.get_world_size())]
        distributed.all_gather(parts, x.contiguous())
        return tuple(parts)

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> Tensor:
        found = empty_like(grads[0])
        distributed.reduce_scatter(found, [g.contiguous() for g in grads])
        return found


class _ReduceScatter(Function):
    @staticmethod
    def forward(ctx: FunctionCtx, *parts: Tensor) -> Tensor:
        found = empty_like(parts[0])
        distributed.reduce_scatter(found, [x.contiguous() for x in parts])
        return found

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor, ...]:
        parts = [empty_like(grad) for _ in range(distributed.get_world_size())]
        distributed.all_gather(parts, grad.contiguous())
        return tuple(parts)


class _Broadcast(Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, src: int) -> Tensor:
        vars(ctx)["src"] = src
        out = x.clone()
        distributed.broadcast(out, src)
        return out

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor, None]:
        found, src = grad.clone(), vars(ctx)["src"]
        distributed.reduce(found, src)
        return found if distributed.get_rank() == src else zeros_like(found), None


def all_reduce(tensor: Tensor, op: ReduceOp = ReduceOp.SUM, group: object = None) -> Tensor:
    """Return the sum, or the mean, of every rank's tensor; gradients are reduced alike."""
    if op not in (ReduceOp.SUM, ReduceOp.AVG):
        raise OneFlowError(f"distributed.nn.all_reduce: op is SUM or AVG, got {op!r}")
    made: Tensor = _AllReduce.apply(tensor, op)
    return made


def all_gather(tensor: Tensor, group: object = None) -> tuple[Tensor, ...]:
    """Return every rank's tensor, by rank; a rank's gradient is the sum of all ranks' gradients of
    it."""
    made = _AllGather.apply(tensor)
    return made if isinstance(made, tuple) else (made,)


def reduce_scatter(
    output: Tensor, input_list: Sequence[Tensor], op: ReduceOp = ReduceOp.SUM, group: object = None
) -> Tensor:
    """Return this rank's entry of the sum of the lists of all ranks."""
    if op is not ReduceOp.SUM:
        raise OneFlowError(f"distributed.nn.reduce_scatter: op is SUM, got {op!r}")
    made: Tensor = _ReduceScatter.apply(*input_list)
    return made


def broadcast(tensor: Tensor, src: int, group: object = None) -> Tensor:
    """Return rank `src`'s tensor; its gradient is the sum of those of all ranks."""
    made: Tensor = _Broadcast.apply(tensor, src)
    return made
