"""Updates that also write the new parameter in another dtype: the half floats that the next step of
a graph in mixed precision reads, in the same pass over the elements.
"""

from __future__ import annotations

from oneflow.core.expression import Expression, cast, eq, scalar, symbol, where
from oneflow.core.op import Op, register
from oneflow.core.operand import Attr, Operand, Tensor
from oneflow.core.tensor_type import TensorType
from oneflow.ops.adam_update import AdamUpdate, AmsgradUpdate
from oneflow.ops.checks import require_float
from oneflow.ops.update import NUMBERS, MomentumUpdate, SgdUpdate, Update

COPY, IS_WANTED = "copy", "is_wanted"


def _with_copy(base: type[Update]) -> type[Update]:
    """`base` with two operands more: `copy`, before the numbers, which is overwritten by the new
    parameter in the dtype that it has; and, last and optional, `is_wanted`, int64[]: if it is 0
    nothing changes.
    """
    names = base.operands
    arrays = sum(name not in NUMBERS for name in names)
    states = [names[i] for i in base.mutates.values()]

    def split(types: tuple[Operand, ...]) -> tuple[tuple[Operand, ...], Operand]:
        return (*types[:arrays], *types[arrays + 1 : len(names) + 1]), types[arrays]

    def infer(*types: Operand, **attrs: Attr) -> tuple[TensorType, ...]:
        given, copy = split(types)
        require_float(made.name, copy)
        outputs = base.infer(*given, **attrs)
        listed = outputs if isinstance(outputs, tuple) else (outputs,)
        return (*listed, copy.meta)

    def formula(*types: TensorType, **attrs: Attr) -> tuple[Expression, ...]:
        given, copy = split(types)
        assert base.formula is not None
        new = base.formula(*given, **attrs)
        if len(types) > len(names) + 1:
            keeps = eq(scalar(IS_WANTED), 0)
            new = tuple(where(keeps, symbol(n), e) for e, n in zip(new, states, strict=True))
        return (*new, cast(new[0], copy.dtype))

    members = {
        "name": f"{base.name}_and_cast",
        "__doc__": f"{base.name}, which also writes the new parameter into `copy`.",
        "infer": staticmethod(infer),
        "formula": staticmethod(formula),
        "declared_by": staticmethod(base.infer),
        "mutates": {**base.mutates, len(states): arrays},
    }
    made: type[Update] = type(f"{base.__name__}AndCast", (base,), members)
    register(made)
    made.num_outputs = len(states) + 1
    made.operands = (*names[:arrays], COPY, *names[arrays:], IS_WANTED)
    return made


AND_CAST: dict[type[Op], type[Update]] = {
    base: _with_copy(base) for base in (SgdUpdate, MomentumUpdate, AdamUpdate, AmsgradUpdate)
}
"""The form of an update that casts, too."""


def with_copy(
    op: type[Op], inputs: tuple[Tensor, ...], copy: Tensor
) -> tuple[type[Op], tuple[Tensor, ...]]:
    """The form of an update that casts, too, and its operands."""
    made = AND_CAST[op]
    at = made.operands.index(COPY)
    return made, (*inputs[:at], copy, *inputs[at:])
