"""Operands of the programs that multiply matrices: their contents, and where those of one product
of a batch begin."""

from __future__ import annotations

from dataclasses import dataclass

from oneflow.kernels.native.llvm_code import Value, narrowed
from oneflow.kernels.native.machine_code import machine
from oneflow.kernels.native.program import FLOAT_NBYTES, Program, at

HALF_NBYTES = 2


@dataclass(frozen=True)
class Form:
    """Contents of the operands. is_paired: pairs of bfloat16, not float32. is_half: out holds
    bfloat16, rounded once."""

    is_paired: bool = False
    is_half: bool = False

    def at(self, out: Value, index: Value | int) -> Value:
        """Address of an element of out."""
        return out + (index * (HALF_NBYTES if self.is_half else FLOAT_NBYTES))

    def added(self, a: Value, b: Value, total: Value) -> Value:
        """total + a * b, of vectors."""
        if not self.is_paired:
            return a.times_plus(b, total)
        return total.plus_pairs(a, b, is_native=machine().has_bfloat16_pairs)

    def store(self, p: Program, value: Value, address: Value, count: Value | None = None) -> None:
        """Store numbers of out; count: the first ones only."""
        value = narrowed(value) if self.is_half else value
        if count is None:
            p.store(value, address)
        else:
            p.store_first(count, value, address)


def of_item(p: Program, form: Form, outer: Value, inner: Value) -> list[Value]:
    """Addresses of a, b and out of one product of the batch."""
    steps = [outer * p[f"{x}_outer"] + inner * p[f"{x}_inner"] for x in ("a", "b", "out")]
    return [at(p["a"], steps[0]), at(p["b"], steps[1]), form.at(p["out"], steps[2])]
