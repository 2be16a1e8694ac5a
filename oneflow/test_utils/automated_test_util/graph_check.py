"""A call of ours, once more in `nn.Graph`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from oneflow.graph.graph import Graph
from oneflow.nn.module import Module
from oneflow.tensor.tensor import Tensor
from oneflow.test_utils.automated_test_util.comparing import Tolerance, array_of

EAGER_ONLY = frozenset((
    *("backward", "item", "numpy", "tolist", "requires_grad_", "retain_grad", "register_hook"),
    *("to_global", "to_local", "to", "cpu", "cuda", "train", "eval", "Parameter", "tensor"),
    *("is_contiguous", "size", "stride", "dim", "numel", "apply", "detach_", "data_ptr"),
    "as_strided",  # values of graphs have no strides
))  # fmt: skip
"""Functions that no graph holds: they move or mark tensors, or read their values."""


@dataclass
class GraphCall:
    """A function of ours, and its arguments. function: A module, or called with `args`."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def copied(self) -> GraphCall:
        """Copy the arguments, before the eager call writes into them."""
        function = self.function
        if isinstance(function, Module):
            function = copy.deepcopy(function)
        return GraphCall(function, _copied(self.args), _copied(self.kwargs))

    def is_for(self, result: object) -> bool:
        """Return whether a graph computes this: tensors from tensors."""
        inputs = list(filter(_is_input, tensors_in((self.args, self.kwargs))))
        return bool(inputs and tensors_in(result)) and not any(x.is_global for x in inputs)

    def run(self) -> Any:
        """Trace the call, and run it."""
        inputs = list(filter(_is_input, tensors_in((self.args, self.kwargs))))

        def build(*given: Tensor) -> Any:
            left = list(given)
            args, kwargs = _mapped(
                (self.args, self.kwargs), lambda x: left.pop(0) if _is_input(x) else x
            )
            return self.function(*args, **kwargs)

        return Graph.trace(build)(*inputs)

    @staticmethod
    def difference(eager: object, traced: object, tolerance: Tolerance) -> str:
        """Say how the results differ; "" if they agree."""
        for a, b in zip(tensors_in(eager), tensors_in(traced), strict=True):
            wanted, found = array_of(a), array_of(b)
            if wanted.shape != found.shape:
                return f"eager {list(wanted.shape)}, traced {list(found.shape)}"
            if not np.allclose(found, wanted, tolerance.rtol, tolerance.atol, equal_nan=True):
                return f"eager {wanted.ravel()[:4]}..., traced {found.ravel()[:4]}..."
        return ""


def _is_input(x: Tensor) -> bool:
    """Tensors without dims may stand for numbers, which a graph reads where they are made."""
    return x.ndim > 0


def tensors_in(tree: object) -> list[Tensor]:
    """Return the tensors in nested lists, tuples, slices and dicts, in order."""
    found: list[Tensor] = []
    _mapped(tree, found.append)
    return found


def _copied(tree: object) -> Any:
    return _mapped(tree, lambda x: x.detach().clone())


def _mapped(tree: object, change: Callable[[Tensor], object]) -> Any:
    """A tree of arguments with its tensors changed."""
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, Mapping):
        return {key: _mapped(value, change) for key, value in tree.items()}
    if isinstance(tree, slice):
        return slice(*(_mapped(x, change) for x in (tree.start, tree.stop, tree.step)))
    if isinstance(tree, (list, tuple)) and type(tree) in (list, tuple):
        return type(tree)(_mapped(x, change) for x in tree)
    if (
        isinstance(tree, Sequence)
        and not isinstance(tree, (str, bytes))
        and hasattr(tree, "_fields")
    ):
        return tuple(_mapped(x, change) for x in tree)
    return tree
