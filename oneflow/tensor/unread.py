"""The tensors of a call whose values its gradient reads, and stand-ins for the others.

The gradient of a sum asks for the shape of its input, that of a product for its values. Which it is
follows from the types and attributes of the call, as in oneflow/autograd/replay.py: the gradient is
asked for once with tensors that have no values, in a mode that notes what is called with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from oneflow.core.device import Device
from oneflow.core.dispatch import Mode, use_mode
from oneflow.core.op import Op
from oneflow.core.operand import Attrs
from oneflow.core.placement import Placement
from oneflow.core.sbp import NdSbp
from oneflow.core.tensor_type import TensorType
from oneflow.tensor.devices import array_on
from oneflow.tensor.tensor import Tensor, cpu_device, raw

TYPE_ALONE = ("full_like",)
"""Ops that read the type of their input and nothing else."""


@dataclass(frozen=True, slots=True)
class Kept:
    """All of a tensor but its values. shape: of the array that lies here."""

    meta: TensorType
    shape: tuple[int, ...]
    device: Device
    placement: Placement | None
    sbp: NdSbp | None
    value: Any

    def stand_in(self) -> Tensor:
        """A tensor of that type, in that place, without memory: its values mean nothing."""
        x = raw(self.meta, None, self.device)
        if self.value is None:
            blank = np.broadcast_to(np.zeros((), self.meta.dtype.np), self.shape)
            x._array = array_on(blank, self.device)
        x._placement, x._sbp, x.value = self.placement, self.sbp, self.value
        return x


def kept(x: Tensor) -> Kept:
    shape = x.meta.shape if x._array is None else tuple(x._array.shape)
    return Kept(x.meta, shape, x._device, x._placement, x._sbp, x.value)


def reads(
    op: type[Op],
    inputs: Sequence[TensorType],
    outputs: Sequence[TensorType],
    attrs: Attrs,
    wanted: Sequence[bool],
) -> list[bool]:
    """For each input, then each output: whether the gradient by the wanted inputs reads its values.

    A gradient that cannot be watched may read all of them.
    """
    spy = _Spy()
    grads = [spy.stand_in(t, "d") for t in outputs]
    given = [spy.stand_in(t, str(i)) for i, t in enumerate((*inputs, *outputs))]
    try:
        with use_mode(spy):
            found = op.grad(*grads, *given, **attrs)
            for is_wanted, result in zip(wanted, found, strict=False):
                made = result() if is_wanted and callable(result) else result
                if is_wanted and isinstance(made, Tensor):
                    spy.read.add(made.value)
    except Exception:
        return [True] * len(given)
    return [str(i) in spy.read for i in range(len(given))]


class _Spy(Mode):
    """Computes nothing, and notes the names of the tensors that ops were called with."""

    has_memory = False

    def __init__(self) -> None:
        self.read: set[Any] = set()

    def stand_in(self, type_: TensorType, name: str) -> Tensor:
        x = raw(type_, None, cpu_device())
        x.value = name
        return x

    def run(self, op: type[Op], inputs: tuple[Tensor, ...], attrs: Attrs) -> Any:
        if op.name not in TYPE_ALONE:
            self.read.update(x.value for x in inputs)
        made: Any = op.infer(*[x.meta for x in inputs], **attrs)
        if isinstance(made, TensorType):
            return self.stand_in(made, "v")
        return tuple(self.stand_in(t, "v") for t in made)
