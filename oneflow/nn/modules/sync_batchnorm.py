"""Batch norm whose mean and variance are those of the batches of all ranks together."""

from __future__ import annotations

import importlib
from typing import Any

from oneflow.autograd.function import Function
from oneflow.core.config import current_config
from oneflow.core.device import Device
from oneflow.core.dtype import DTypeLike
from oneflow.core.errors import ShapeError
from oneflow.functional.concat_split import cat
from oneflow.functional.from_data import tensor
from oneflow.functional.shaping import reshape
from oneflow.nn.module import Module
from oneflow.nn.modules.normalization import _BatchNorm
from oneflow.ops.unary import rsqrt
from oneflow.tensor.grad_mode import no_grad
from oneflow.tensor.tensor import Tensor

__all__ = ["SyncBatchNorm"]


class _SumOverRanks(Function):
    """The sum over all ranks; so is its gradient: every rank's result holds every rank's share."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        total = x.clone()
        comm = importlib.import_module("oneflow.comm")
        comm.all_reduce_in(total, "sum", f"SyncBatchNorm of {x.meta}")
        return total

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:
        return _SumOverRanks.forward(ctx, grad)


class SyncBatchNorm(_BatchNorm):
    """Batch norm of local tensors over the batches of all ranks; each rank has its part.

    With one rank, in eval mode and for global tensors, whose statistics are those of the whole
    batch anyway, it is an ordinary batch norm.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: object = None,
        device: Device | str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        if process_group is not None:
            raise ValueError("SyncBatchNorm works over all ranks; leave process_group out")
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim < 2:
            raise ShapeError(f"expected at least 2D input (got {x.ndim}D input {x.meta})")
        uses_batch = self.training or self.running_mean is None
        if not uses_batch or x.is_global or current_config().world_size == 1:
            return self._normalized(x)
        return self._over_ranks(x)

    def _over_ranks(self, x: Tensor) -> Tensor:
        dims = tuple(d for d in range(x.ndim) if d != 1)
        wide = (1, -1, *(1 for _ in dims[1:]))
        own = tensor([float(x.meta.numel // x.shape[1])], dtype=x.dtype, device=x.device)
        sums = _SumOverRanks.apply(cat([x.sum(dims), own], 0))
        channels = self.num_features
        count = sums[channels].detach()
        mean = sums[:channels] / count
        centred: Any = x - reshape(mean, wide)
        var = _SumOverRanks.apply((centred * centred).sum(dims)) / count
        out = centred * reshape(rsqrt(var + self.eps), wide)
        if self.weight is not None:
            out = out * reshape(self.weight, wide) + reshape(self.bias, wide)
        if self.training and self.running_mean is not None:
            self._keep(mean.detach(), var.detach() * (count / (count - 1)))
        result: Tensor = out
        return result

    def _keep(self, mean: Tensor, var: Tensor) -> None:
        """Put the batch's statistics in the running averages."""
        with no_grad():
            self.num_batches_tracked.add_(1)
            share = self.momentum
            if share is None:
                share = 1.0 / float(self.num_batches_tracked)
            self.running_mean.mul_(1 - share).add_(mean, alpha=share)
            self.running_var.mul_(1 - share).add_(var, alpha=share)

    @classmethod
    def convert_sync_batchnorm(cls, module: Module, process_group: object = None) -> Module:
        """The module with every batch norm in it replaced, parameters and averages kept."""
        made: Module = module
        if isinstance(module, _BatchNorm) and not isinstance(module, cls):
            sync = cls(
                module.num_features,
                module.eps,
                module.momentum,
                module.affine,
                module.track_running_stats,
                process_group,
            )
            sync._parameters.update(module._parameters)
            sync._buffers.update(module._buffers)
            made = sync.train(module.training)
        for name, part in list(module.named_children()):
            made._modules[name] = cls.convert_sync_batchnorm(part, process_group)
        return made
