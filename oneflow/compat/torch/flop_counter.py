"""`torch.utils.flop_counter`: the multiplications and additions of the ops in a block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from oneflow.core.dispatch import Mode, ModeAbove, current_mode, swap_mode
from oneflow.core.op import Op
from oneflow.core.operand import Attrs
from oneflow.tensor.tensor import Tensor

__all__ = ["FlopCounterMode"]


def _product(inputs: Sequence[Tensor], outs: Sequence[Tensor]) -> int:
    """Two for each element of the result and each term of its sum."""
    a = inputs[0]
    return 2 * int(np.prod(outs[0].shape)) * int(a.shape[-1]) if a.shape else 0


def _conv(inputs: Sequence[Tensor], outs: Sequence[Tensor]) -> int:
    """Two for each element of the result and each weight of its channel."""
    weight = inputs[1]
    return 2 * int(np.prod(outs[0].shape)) * int(np.prod(weight.shape[1:]))


FORMULAS: Mapping[str, Callable[[Sequence[Tensor], Sequence[Tensor]], int]] = {
    name: _product for name in ("matmul", "batch_matmul", "linear", "addmm", "matrix_vector")
} | {"conv1d": _conv, "conv2d": _conv, "conv3d": _conv, "conv": _conv}
"""Op -> the number of its multiplications and additions, from its inputs and outputs."""


class _Counting(ModeAbove):
    def __init__(self, inner: Mode, found: Counter[str]) -> None:
        super().__init__(inner)
        self.found = found

    def run(self, op: type[Op], inputs: tuple[Any, ...], attrs: Attrs) -> Any:
        out = self.inner.run(op, inputs, attrs)
        if op.name in FORMULAS:
            outs = out if isinstance(out, tuple) else (out,)
            self.found[op.name] += FORMULAS[op.name](inputs, outs)
        return out


class FlopCounterMode:
    """A block that counts the multiplications and additions of products and convolutions.

    mods, depth, display, custom_mapping: accepted; counts are by op.
    """

    def __init__(
        self,
        mods: object = None,
        depth: int = 2,
        display: bool = True,
        custom_mapping: dict[Any, Any] | None = None,
    ) -> None:
        self._found: Counter[str] = Counter()
        self._display = display

    def __enter__(self) -> FlopCounterMode:
        self._found.clear()
        self._before = swap_mode(_Counting(current_mode(), self._found))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        swap_mode(self._before)
        if self._display:
            print(self.get_table())

    def get_total_flops(self) -> int:
        """Return the number of all ops in the block."""
        return sum(self._found.values())

    def get_flop_counts(self) -> dict[str, dict[str, int]]:
        """Return the numbers by op, under "Global"."""
        return {"Global": dict(self._found)}

    def get_table(self, depth: int | None = None) -> str:
        """Return the numbers by op as text."""
        rows = [f"{name:<20} {count:>16,}" for name, count in self._found.most_common()]
        return "\n".join([f"{'op':<20} {'flops':>16}", *rows])
