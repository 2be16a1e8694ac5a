"""The device "cpu+remat": the CPU, whose kernel calls are kept so that they can be made again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from oneflow.core.op import REGISTRY, infer_types
from oneflow.core.operand import Attrs
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.array import Array, ArrayModule, data_address
from oneflow.kernels.hardware import Hardware, Host
from oneflow.kernels.registry import Kernel, KernelFunction, select, taking
from oneflow.kernels.remat_array import MODULE, RematArray, as_remat, lift
from oneflow.kernels.remat_memory import MEMORY, keep_call


class RematCpu(Hardware):
    """The host's memory, within a budget."""

    kind = "cpu+remat"
    array_class = RematArray

    @classmethod
    def count(cls) -> int:
        return 1

    @classmethod
    def address(cls, array: Array) -> int:
        return data_address(as_remat(array).held)

    def use(self) -> ArrayModule:
        return MODULE

    def from_host(self, array: Host, non_blocking: bool = False) -> Array:
        made: Array = lift(array.copy())
        return made

    @classmethod
    def to_host(cls, array: Array) -> Host:
        host: Host = as_remat(array).read().copy()
        return host

    def allocate(self, nbytes: int) -> Array:
        made: Array = lift(np.zeros(nbytes, np.uint8))
        return made

    @classmethod
    def kernel_of(cls, name: str, types: tuple[TensorType, ...], numel: int) -> Kernel:
        """Return the CPU's kernel, whose calls are kept so that they can be made again."""
        inner, op = select(name, "cpu", types, numel), REGISTRY[name]

        def bind(types: tuple[TensorType, ...], attrs: Attrs) -> KernelFunction:
            function = inner.bound(types, attrs)
            known = {k: v for k, v in attrs.items() if op.attrs is None or k in op.attrs}
            num_outs = len(infer_types(op, types, known))
            fixed = attrs if inner.bind is None else {}
            extra = inner.workspace(types, attrs) if inner.workspace else ()
            flops = float(op.flops(*types, **op.defaults | known)) if op.flops is not None else 0.0
            mutated = sorted(op.mutates)

            def run(xp: ArrayModule, *arrays: RematArray, **given: object) -> None:
                keywords = fixed | given

                def kernel(*hosts: Host) -> None:
                    work = [np.empty(t.shape, t.dtype.np) for t in extra]
                    with np.errstate(all="ignore"):
                        function(np, *hosts, *work, **keywords)

                _record(kernel, arrays[:num_outs], arrays[num_outs:], mutated, flops)

            return taking(run, "remat")

        return Kernel(inner.function, bind=bind)


def _record(
    kernel: Callable[..., None],
    outs: tuple[RematArray, ...],
    inputs: tuple[RematArray, ...],
    mutated: Sequence[int],
    flops: float,
) -> None:
    """Run a kernel, and keep the call with its results. mutated: outputs that are inputs."""
    with MEMORY.holding([x.storage for x in inputs]):
        is_new = [i not in mutated and out.storage.is_new for i, out in enumerate(outs)]
        for out, new in zip(outs, is_new, strict=True):
            if not new:
                MEMORY.written(out.storage)
        MEMORY.take(out.storage for out, new in zip(outs, is_new, strict=True) if new)
        kernel(*[out.held for out in outs], *[x.held for x in inputs])
        if all(is_new):
            keep_call(kernel, outs, inputs, flops)
