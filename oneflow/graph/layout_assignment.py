"""Variables that the compiler lays out: which may be, and the tensors that then follow.

The search for layouts and ZeRO are part of compiling, so a plan says how its variables lie, and on
which of their ranks, where stages of a pipeline divide these. Before it is bound, the eager tensors
are brought there; their values stay, and all plans after this one find them so: a tensor in a plan
stays where it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from weakref import WeakValueDictionary

from oneflow.core.graph import Value
from oneflow.core.plan import Plan
from oneflow.core.sbp import NdSbp
from oneflow.kernels.array import Array
from oneflow.tensor.grad_mode import no_grad
from oneflow.tensor.tensor import Tensor

_bound: WeakValueDictionary[int, Tensor] = WeakValueDictionary()
"""Tensors whose arrays a plan works on, by id."""


def may_lay_out(x: Tensor) -> bool:
    """Whether the search may choose where the parts of `x` lie: it spans ranks, is no partial sum,
    and no plan works on it.
    """
    if x._placement is None or x._sbp is None or x._placement.size == 1:
        return False
    return id(x) not in _bound and not any(s.is_partial for s in x._sbp)


def take_layouts(
    plan: Plan, variables: Mapping[str, Tensor], whole: dict[int, NdSbp]
) -> dict[str, Array]:
    """Lay out the tensors as the plan has them. Returns the arrays that it then works on.

    All ranks of the tensors call it alike. whole: gets the layouts that tensors had before they
    were split, by their ids.
    """
    for name, value in plan.graph.variables.items():
        take_layout(variables[name], value, whole)
    return {name: lend(x) for name, x in variables.items()}


def lend(x: Tensor) -> Array:
    """The array of a tensor for a plan that reads and overwrites it: the tensor keeps to it."""
    _bound[id(x)] = x
    return contiguous(x)


def take_layout(x: Tensor, value: Value, whole: dict[int, NdSbp]) -> None:
    """Lay out a tensor as its variable lies, if the search chose it, or ZeRO splits it. All its
    ranks call it.
    """
    nd_sbp, placement, attrs = value.sbp, value.placement, value.node.attrs
    is_ours = attrs.get("free") or attrs.get("split")
    if is_ours and (x._sbp != nd_sbp or x._placement != placement):
        if attrs.get("split") and x._sbp is not None:
            whole.setdefault(id(x), x._sbp)
        with no_grad():
            x.data = x.detach().to_global(placement, nd_sbp)


def contiguous(x: Tensor) -> Array:
    """The array of a variable; kernels write into it, so it is made contiguous in place."""
    array: Array = x._array
    if array is not None and not array.flags.c_contiguous:
        x._array = array = array.copy()
    return array
