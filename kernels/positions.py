"""The check of operands that hold positions: indices, labels (`Op.positions`).

A CPU looks at the values and raises. On a GPU looking would wait for the device: there the check is
a kernel with an assertion, which ends the job with the name of the op.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from oneflow.core.errors import PositionError
from oneflow.core.op import Op
from oneflow.core.operand import Attrs
from oneflow.core.tensor_type import TensorType
from oneflow.kernels.array import Array, ArrayModule
from oneflow.kernels.hardware import class_of
from oneflow.kernels.positions_gpu import assert_positions
from oneflow.kernels.registry import KernelFunction, path_of, taking


def guarded(
    op: type[Op],
    function: KernelFunction,
    types: tuple[TensorType, ...],
    attrs: Attrs,
    num_outputs: int,
    device: str,
) -> KernelFunction:
    """`function` of a call behind the check of the operands that hold positions.

    types, attrs: of the whole tensors, so that a shard is held to the whole dim.
    """
    if op.positions is None:
        return function
    allowed = [(num_outputs + i, r) for i, r in op.positions(*types, **attrs).items()]

    def run(xp: ArrayModule, *arrays: Array, **keywords: object) -> None:
        for i, wanted in allowed:
            if device != "cpu" or not _lies_within(arrays[i], wanted):
                require_positions(op.name, arrays[i], wanted, attrs)
        function(xp, *arrays, **keywords)

    return taking(run, path_of(function))


def require_positions(name: str, index: Array, allowed: range, attrs: Attrs) -> None:
    """Raises PositionError for a value that is neither in `allowed` nor `ignore_index`; on a GPU
    of CUDA fails an assertion.

    attrs: of the op `name`.
    """
    kind = class_of(index)
    if kind.kind == "cuda":
        assert_positions(name, index, allowed, attrs.get("ignore_index", allowed.start))
        return
    index = kind.to_host(index)
    wrong = index[(index < allowed.start) | (index >= allowed.stop)]
    wrong = wrong[wrong != attrs["ignore_index"]] if "ignore_index" in attrs else wrong
    if wrong.size:
        raise PositionError(_words(name, int(wrong[0]), allowed, attrs))


def _lies_within(index: np.ndarray[Any, Any], allowed: range) -> bool:
    if not index.size:
        return True
    kind = index.dtype
    if allowed.start == 0 and kind.kind == "i" and allowed.stop <= 1 << (8 * kind.itemsize - 1):
        # One pass instead of two: negative numbers are larger than all others without a sign.
        return int(index.view(f"u{kind.itemsize}").max()) < allowed.stop
    return int(index.min()) >= allowed.start and int(index.max()) < allowed.stop


def _words(name: str, wrong: int, allowed: range, attrs: Attrs) -> str:
    if "ignore_index" in attrs:
        return (
            f"{name}: Target {wrong} is out of bounds: labels are classes, {allowed.start} to "
            f"{allowed.stop - 1}, or ignore_index, {attrs['ignore_index']}"
        )
    if "depth" in attrs:
        bound = "non-negative." if wrong < 0 else "smaller than num_classes."
        return f"{name}: Class values must be {bound} It is {wrong}, of {allowed.stop} classes"
    where = f" for dimension {attrs['dim']}" if "dim" in attrs else ""
    return (
        f"{name}: index {wrong} is out of bounds{where} with size {allowed.stop}: index out of "
        f"range in self, which has positions {allowed.start} to {allowed.stop - 1}"
    )
