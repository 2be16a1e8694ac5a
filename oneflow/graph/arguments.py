"""The arguments of a graph: the same tensors in the same places at each call."""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from oneflow.core.device import META
from oneflow.core.dispatch import current_mode
from oneflow.core.errors import GraphError
from oneflow.core.placement import Placement
from oneflow.core.sbp import NdSbp
from oneflow.core.tensor_type import TensorType
from oneflow.graph.tree import Tree, flatten
from oneflow.surfaces import find
from oneflow.tensor.tensor import Tensor, wrap
from oneflow.tensor.views import place_of, stand_in

Meta = tuple[TensorType, Placement | None, NdSbp | None]
NO_ROWS: Mapping[str, RowsNeeded] = MappingProxyType({})
_FIXED = (bool, int, float, complex, str, bytes)


def key_of(given: Tree) -> Hashable:
    """The shapes, dtypes and layouts of the tensors of a call, and its other arguments."""
    return frozenset(
        (path, meta_of(leaf) if isinstance(leaf, Tensor) else repr(leaf))
        for path, leaf in flatten(given)
    )


class RowsNeeded(NamedTuple):
    """The call that needs an argument in row-major order. whole: and at the start of its memory."""

    call: str
    whole: bool


class Arguments:
    """The arguments of the first call, with which all later ones are compared.

    given: (args, kwargs).  metas: of the tensors in it, in order.  rows: of the tensors whose
    memory `build` counts in, by the names of the inputs.
    """

    def __init__(self, graph: str, given: Tree, rows: Mapping[str, RowsNeeded] = NO_ROWS) -> None:
        self._graph = graph
        self.rows = rows
        leaves = flatten(given)
        self.paths = [path for path, leaf in leaves if isinstance(leaf, Tensor)]
        self.constants = {path: leaf for path, leaf in leaves if not isinstance(leaf, Tensor)}
        self.metas = [meta_of(leaf) for _, leaf in leaves if isinstance(leaf, Tensor)]

    @classmethod
    def of(
        cls,
        graph: str,
        paths: list[str],
        constants: dict[str, object],
        metas: list[Meta],
        rows: Mapping[str, RowsNeeded] = NO_ROWS,
    ) -> Arguments:
        """Arguments that were described before."""
        made = cls(graph, (), rows)
        made.paths, made.constants, made.metas = list(paths), dict(constants), metas
        return made

    @property
    def key(self) -> Hashable:
        """The key of calls with such arguments, as `key_of` gives it."""
        constants = {(path, repr(leaf)) for path, leaf in self.constants.items()}
        return frozenset({*zip(self.paths, self.metas, strict=True), *constants})

    def examples(self, build: inspect.Signature) -> dict[str, Tensor]:
        """Return zeros like the tensors of the first call, by the names of `build`'s arguments.
        Raises GraphError if one of them is no tensor.
        """
        names = list(build.parameters)
        found = {}
        for path, meta in zip(self.paths, self.metas, strict=True):
            _, place, key, *inner = path.split(".")
            if inner or self.constants:
                raise GraphError(
                    f"save of {self._graph}: each argument of build() is to be one tensor, so that "
                    f"requests can name it; {path} is not, or there are others"
                )
            found[names[int(key)] if place == "0" else key] = _zeros(*meta)
        return found

    def tensors(self, given: Tree) -> list[Tensor]:
        """The tensors of another call, in the order of the first. Raises GraphError for an
        argument that differs from then.
        """
        leaves = dict(flatten(given))
        found = []
        for path in self.paths:
            x = leaves.pop(path, None)
            if not isinstance(x, Tensor):
                raise self._differs(path, "a tensor", x)
            found.append(x)
        for path, leaf in leaves.items():
            if path not in self.constants or not _is_same(self.constants[path], leaf):
                raise self._differs(path, repr(self.constants.get(path)), leaf)
        for i, (x, expected) in enumerate(zip(found, self.metas, strict=True)):
            if meta_of(x) != expected:
                raise _changed(i, expected, meta_of(x))
            if x.value is not None:
                raise _nested(self._graph)
        for name, needed in self.rows.items():
            self._check_rows(int(name.removeprefix("input.")), found, needed)
        return found

    def _check_rows(self, index: int, found: list[Tensor], needed: RowsNeeded) -> None:
        x = found[index]
        array = stand_in(x)
        if array is None or not array.flags.c_contiguous:
            lies = "is not contiguous"
        elif needed.whole and place_of(x):
            lies = "is a view that begins inside the memory of another tensor"
        else:
            return
        raise GraphError(
            f"{needed.call} counts elements in the memory of argument {self.paths[index][3:]} of "
            f"graph {self._graph}, which now {lies}; a graph gets its arguments in row-major "
            "order: pass x.contiguous() or x.clone(), or take the view in build()"
        )

    def _differs(self, path: str, expected: str, found: object) -> GraphError:
        given = f"a tensor {found.meta}" if isinstance(found, Tensor) else repr(found)
        return GraphError(
            f"graph {self._graph} was built for {len(self.paths)} input tensors, and argument "
            f"{path[3:]} was {expected}; now it is {given}. What is no tensor is fixed when the "
            "graph is built: pass a tensor, or make another graph"
        )


def check_inputs(graph: str, given: Tree) -> None:
    """Raises GraphError for an array that is no tensor: the graph would keep the first one; for a
    tensor without values; and for a call inside the build() of another graph.
    """
    if current_mode().draws is not None:  # that graph is being traced
        raise _nested(graph)
    for path, leaf in flatten(given):
        if isinstance(leaf, Tensor) and leaf._device.type == META:
            raise GraphError(f"graph {graph}: argument {path[3:]} is on meta, it has no values")
        if hasattr(leaf, "__array__") and not isinstance(leaf, (Tensor, np.generic)):
            kind = f"{type(leaf).__module__}.{type(leaf).__qualname__}"
            raise GraphError(
                f"graph {graph}: inputs must be tensors, and argument {path[3:]} is a {kind}; "
                "pass flow.from_numpy(array) or flow.tensor(array)"
            )


def _nested(graph: str) -> GraphError:
    return GraphError(
        f"graph {graph} is called inside the build() of another graph: a graph is compiled and run "
        "as a whole, so call its modules there instead"
    )


def meta_of(x: Tensor) -> Meta:
    return x.meta, x._placement, x._sbp


def _is_same(a: object, b: object) -> bool:
    return a is b or (type(a) is type(b) and isinstance(a, _FIXED) and a == b)


def _zeros(type_: TensorType, placement: Placement | None, sbp: NdSbp | None) -> Tensor:
    if placement is None or sbp is None:
        return wrap(np.zeros(type_.shape, type_.dtype.np))
    made: Tensor = find("flow", "zeros")(
        *type_.shape, dtype=type_.dtype, placement=placement, sbp=sbp
    )
    return made


def _changed(index: int, expected: Meta, found: Meta) -> GraphError:
    return GraphError(
        "nn.Graph ONLY accepts static inputs tensor meta, please check whether your input tensor "
        "meta each step is the same as the input of first call graph. The excepted tensor meta "
        f"is: {_text(expected)}, but the actual tensor meta is: {_text(found)}. "
        f"The input index is {index}."
    )


def _text(meta: Meta) -> str:
    type_, placement, sbp = meta
    where = f", placement={placement!r}, sbp={sbp}" if placement is not None else ""
    return f"{type_}{where}"
