"""Data parallelism over local tensors: every rank has the whole model and a part of the batch.

In forward the module sees its parameters through a gate: one tape node whose inputs are the
parameters and whose outputs
are what the layers use. It is older than all that is computed from them, so the backward pass
visits it last, with all
gradients at hand; there they are averaged over the ranks, bucket by bucket, in one order on all
ranks, and parameters
that some rank did not use get zeros.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from oneflow.autograd.grad_mode import is_grad_enabled
from oneflow.autograd.tape import record_call
from oneflow.core.dtype import float32
from oneflow.core.errors import DTypeError, PlacementError
from oneflow.distributed.world import world
from oneflow.tensor.eager_global import to_device, to_host
from oneflow.tensor.tensor import Tensor, alias, raw

MEBIBYTE = 1 << 20


class Replicas:
    """Keeps the copies of one module equal. bucket_nbytes: gradients sent together; 0: each
    alone."""

    def __init__(self, module: Any, bucket_nbytes: int, broadcast_buffers: bool) -> None:
        self._module = module
        self._bucket_nbytes = bucket_nbytes
        self._broadcast_buffers = broadcast_buffers
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        for p in module.parameters():
            _check(p)
        self._buckets = self._divide()

    def share(self, tensors: Any) -> None:
        """Every rank takes rank 0's values."""
        for x in tensors:
            mine = to_host(x.detach()._array)
            first = world().everyone.broadcast(mine, 0)
            if world().rank != 0:
                x.detach()._array[...] = to_device(first, x._device.type)
                x._version[0] += 1

    def forward(self, forward: Any, *args: Any, **kwargs: Any) -> Any:
        """Calls `forward` with the parameters behind the gate."""
        if self._broadcast_buffers:
            self.share(list(self._module.buffers()))
        if not is_grad_enabled() or not self._parameters:
            return forward(*args, **kwargs)
        behind = self._gate()
        swapped: list[tuple[dict[str, Any], str, Any]] = []
        for owner in self._module.modules():
            for name, p in owner._parameters.items():
                if id(p) in behind:
                    swapped.append((owner._parameters, name, p))
        try:
            for table, name, p in swapped:
                table[name] = behind[id(p)]
            return forward(*args, **kwargs)
        finally:
            for table, name, p in swapped:
                table[name] = p

    def _gate(self) -> dict[int, Tensor]:
        outs = [alias(p) for p in self._parameters]
        record_call("data_parallel", self._parameters, outs, self._average)
        return {id(p): out for p, out in zip(self._parameters, outs, strict=True)}

    def _divide(self) -> list[list[int]]:
        """Parameter numbers in buckets, the last parameter first: its gradient is ready first."""
        buckets: list[list[int]] = []
        filled = self._bucket_nbytes
        for i in reversed(range(len(self._parameters))):
            nbytes = self._parameters[i].type.nbytes
            if not buckets or filled + nbytes > self._bucket_nbytes:
                buckets.append([])
                filled = 0
            buckets[-1].append(i)
            filled += nbytes
        return buckets

    def _average(self, grads: list[Any]) -> list[Any]:
        results: list[Any] = [None] * len(grads)
        scale = np.float32(1.0 / world().world_size)
        for bucket in self._buckets:
            parts = [self._flat(i, grads[i]) for i in bucket]
            total = world().everyone.all_reduce(np.concatenate(parts) * scale)
            start = 0
            for i in bucket:
                p = self._parameters[i]
                values = total[start : start + p.type.numel].reshape(p.type.shape)
                start += p.type.numel
                results[i] = raw(p.type, to_device(values, p._device.type), p._device)
        return results

    def _flat(self, index: int, grad: Tensor | None) -> np.ndarray[Any, Any]:
        if grad is None:
            return np.zeros(self._parameters[index].type.numel, np.float32)
        return to_host(grad._array).reshape(-1)


def data_parallel(
    module: Any, broadcast_buffers: bool, broadcast_parameters: bool, bucket_nbytes: int
) -> None:
    """Wires `module` up."""
    replicas = Replicas(module, bucket_nbytes, broadcast_buffers)
    if broadcast_parameters:
        replicas.share(list(module.parameters()))
    forward = module.forward
    object.__setattr__(module, "forward", functools.partial(replicas.forward, forward))


def _check(p: Tensor) -> None:
    if p.is_global:
        raise PlacementError(
            "DistributedDataParallel takes a module of local parameters; "
            "a global one is parallel already"
        )
    if p.type.dtype is not float32:
        raise DTypeError(f"DistributedDataParallel: parameters must be float32, got {p.type}")
