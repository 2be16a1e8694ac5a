"""Data parallelism over local tensors: every rank has the whole model and a part of the batch.

In forward the module sees its parameters through a gate: one tape node whose inputs are the
parameters and whose outputs go to the layers. It learns of each gradient when it is complete
and averages over the ranks every bucket whose gradients are all there, the last parameters first,
in one order on all ranks. It is older than all that is computed from the parameters, so the
backward pass visits it last; then the rest is averaged, with zeros for parameters that this rank
did not use.

On GPUs the ranks exchange buckets beside the kernels of the backward pass, which waits for them at
its end only.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from oneflow.core.dtype import DType
from oneflow.core.errors import DTypeError, PlacementError
from oneflow.distributed.world import world
from oneflow.kernels.array import Array
from oneflow.kernels.hardware import array_module
from oneflow.kernels.streams import BOXING, beside, join
from oneflow.tensor.gate import Gate, Table, behind
from oneflow.tensor.grad_mode import is_grad_enabled
from oneflow.tensor.tape import record_call
from oneflow.tensor.tensor import Tensor, alias, raw, wrap

if TYPE_CHECKING:
    from oneflow.boxing.collectives.base import Collectives
    from oneflow.nn.module import Module

MEBIBYTE = 1 << 20


class Bucket:
    """The gradients of some parameters on this rank. index: its number in this pass.  buffer: all
    elements, one gradient after the other.
    """

    def __init__(self, index: int, is_last: bool, buffer: Tensor, parameters: list[Tensor]) -> None:
        self._index, self._is_last, self._parameters = index, is_last, parameters
        self._buffer = buffer

    def index(self) -> int:
        """The number of buckets before it in this pass."""
        return self._index

    def is_last(self) -> bool:
        """Whether no other one comes in this pass."""
        return self._is_last

    def buffer(self) -> Tensor:
        """The elements of all gradients, of one dim."""
        return self._buffer

    def set_buffer(self, buffer: Tensor) -> None:
        """Replace the elements."""
        self._buffer = buffer

    def parameters(self) -> list[Tensor]:
        """The parameters, in the order of their gradients."""
        return list(self._parameters)

    def gradients(self) -> list[Tensor]:
        """Views of the elements in the shapes of the parameters."""
        parts = _parts(self._buffer._array, self._parameters)
        return [wrap(part) for part in parts]


Hook = Callable[[Bucket], Tensor]
"""Exchanges the gradients of a bucket; returns the elements that take their place."""


class Replicas:
    """Keeps the copies of one module equal.

    bucket_nbytes: gradients sent together; 0: each alone.  ranks: that have a copy; (): all.  hook:
    exchanges gradients; None: they become means.
    """

    def __init__(
        self,
        module: Module,
        bucket_nbytes: int,
        broadcast_buffers: bool,
        ranks: tuple[int, ...] = (),
    ) -> None:
        self._module = module
        self._ranks = ranks or tuple(range(world().world_size))  # ascending
        self.hook: Hook | None = None
        self._bucket_nbytes = bucket_nbytes
        self._broadcast_buffers = broadcast_buffers
        self.averages = True
        """Whether forward passes lead to averages."""
        self.has_own = False  # gradients that were not averaged have been added up
        self._parameters = list(module.parameters())
        for p in self._parameters:
            _check(p)

    @property
    def layout(self) -> dict[str, Any]:
        """The arguments that a copy of this is made with. ranks: () for all."""
        is_everyone = self._ranks == tuple(range(world().world_size))
        ranks = () if is_everyone else self._ranks
        return {"ranks": ranks, "bucket_nbytes": self._bucket_nbytes}

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside, forward passes are of this rank alone: their gradients add up in `.grad`, and are
        averaged with those of the next pass outside.
        """
        before, self.averages = self.averages, False
        try:
            yield
        finally:
            self.averages = before

    def share(self, tensors: list[Tensor]) -> None:
        """Every rank takes rank 0's values; tensors of one dtype and device travel together."""
        for key in dict.fromkeys(map(_kind, tensors)):
            alike = [x for x in tensors if _kind(x) == key]
            xp, everyone = _means_of(key[0], self._ranks)
            first = everyone.broadcast(
                xp.concatenate([x._array.reshape(-1) for x in alike]), 0, "DistributedDataParallel"
            )
            if world().rank == self._ranks[0]:
                continue
            for x, values in zip(alike, _parts(first, alike), strict=True):
                x._array[...] = values
                x._version[0] += 1

    def forward(self, *args: object, **kwargs: object) -> Any:
        """Calls the module with its parameters behind the gate."""
        if self._broadcast_buffers and self.averages:
            self.share(list(self._module.buffers()))
        if not is_grad_enabled() or not any(p._requires_grad for p in self._parameters):
            return self._module(*args, **kwargs)
        if not self.averages:
            self.has_own = True
            return self._module(*args, **kwargs)
        with behind(self._gate()):
            return self._module(*args, **kwargs)

    def _gate(self) -> Gate:
        live = [p for p in self._parameters if p._requires_grad]
        outs = [alias(p) for p in live]
        averaging = Averaging(
            live, self._bucket_nbytes, self._ranks, takes_own=self.has_own, hook=self.hook
        )
        self.has_own = False
        record_call("data_parallel", live, outs, averaging.finish, averaging.arrived)
        stand_ins = {id(p): out for p, out in zip(live, outs, strict=True)}
        places: list[tuple[Table, str, Tensor]] = [
            (owner._parameters, name, p)
            for owner in self._module.modules()
            for name, p in owner._parameters.items()
            if p is not None and id(p) in stand_ins
        ]
        return Gate(places, stand_ins)


class Averaging:
    """The gradients of one forward call on their way over some ranks.

    takes_own: the first pass averages with them the gradients that each rank has added up in
    `.grad` alone, which it takes away there: the result is the sum. hook: see Replicas.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        bucket_nbytes: int,
        ranks: tuple[int, ...],
        takes_own: bool = False,
        hook: Hook | None = None,
    ) -> None:
        self._parameters, self._takes_own = parameters, takes_own
        self._ranks, self._hook = ranks, hook
        self._buckets = divide(parameters, bucket_nbytes)
        self._start()

    def _start(self) -> None:
        self._grads: dict[int, Tensor | None] = {}
        self._results: list[Any] = [None] * len(self._parameters)
        self._num_done = 0
        self._is_beside = False

    def arrived(self, index: int, grad: Tensor | None) -> None:
        """The gradient of one parameter is complete."""
        self._grads[index] = grad
        while self._num_done < len(self._buckets) and all(
            i in self._grads for i in self._buckets[self._num_done]
        ):
            self._average_next()

    def finish(self, grads: list[Any]) -> list[Any]:
        """Return all averaged gradients; one that did not arrive counts as zero."""
        for index, grad in enumerate(grads):
            self._grads.setdefault(index, grad)
        while self._num_done < len(self._buckets):
            self._average_next()
        if self._is_beside:
            join(BOXING)
        results = self._results
        self._takes_own = False
        self._start()
        return results

    def _average_next(self) -> None:
        bucket = self._buckets[self._num_done]
        self._num_done += 1
        members = [self._parameters[i] for i in bucket]
        device, dtype = _kind(members[0])
        xp, everyone = _means_of(device, self._ranks)
        scale = dtype.np.type(1.0 if self._hook else 1.0 / len(self._ranks))
        flat = xp.empty(sum(p.meta.numel for p in members), dtype.np)
        parts = _parts(flat, members)
        for i, part in zip(bucket, parts, strict=True):
            grad = self._grads[i]
            if grad is None:
                part[...] = 0
            else:
                xp.multiply(grad._array, scale, out=part)
                self._grads[i] = None  # its memory can go
            own = self._parameters[i]._grad
            if self._takes_own and own is not None:
                part += own._array * scale
                self._parameters[i]._grad = None
        what = f"gradients of DistributedDataParallel, {dtype.name}[{flat.size}]"
        if self._hook is not None:
            is_last = self._num_done == len(self._buckets)
            made = self._hook(Bucket(self._num_done - 1, is_last, wrap(flat), members))
            flat[...] = made._array.reshape(-1)
        elif device != "cuda":
            everyone.all_reduce(flat, out=flat, what=what)
        else:
            self._is_beside = True
            with beside(BOXING):
                everyone.all_reduce(flat, out=flat, what=what)
        for i, p, part in zip(bucket, members, parts, strict=True):
            self._results[i] = raw(p.meta, part, p._device)


def _kind(x: Tensor) -> tuple[str, DType]:
    """Tensors of one kind travel together: (kind of device, dtype)."""
    return x._device.type, x.meta.dtype


def _means_of(kind: str, ranks: tuple[int, ...]) -> tuple[Any, Collectives]:
    """The array module of a kind of device, and the collectives of these ranks for its arrays."""
    return array_module(kind), world().collectives_on(kind, ranks)


def _parts(flat: Array, tensors: Sequence[Tensor]) -> list[Array]:
    """Views of `flat`, one after the other, in the shapes of `tensors`."""
    ends = itertools.accumulate(x.meta.numel for x in tensors)
    return [
        flat[end - x.meta.numel : end].reshape(x.meta.shape)
        for x, end in zip(tensors, ends, strict=True)
    ]


def divide(parameters: Sequence[Tensor], bucket_nbytes: int) -> list[list[int]]:
    """Numbers of parameters in buckets of one kind of device and dtype, the last parameter first:
    its gradient is ready first."""
    buckets: list[list[int]] = []
    filled = 0
    for i in reversed(range(len(parameters))):
        kind, nbytes = _kind(parameters[i]), parameters[i].meta.nbytes
        is_full = filled + nbytes > bucket_nbytes
        if not buckets or is_full or _kind(parameters[buckets[-1][0]]) != kind:
            buckets.append([])
            filled = 0
        buckets[-1].append(i)
        filled += nbytes
    return buckets


def _check(p: Tensor) -> None:
    if p.is_global:
        raise PlacementError(
            "DistributedDataParallel takes a module of local parameters; "
            "a global one is parallel already"
        )
    if not p.meta.dtype.is_floating_point:
        raise DTypeError(f"DistributedDataParallel: parameters must be real floats, got {p.meta}")
