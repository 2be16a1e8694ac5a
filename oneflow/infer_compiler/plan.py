"""A plan of an FX graph for inputs of some shapes: it reads PyTorch's tensors where they lie, and
may lend its registers to PyTorch's tensors.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from oneflow.core.graph import LogicalGraph
from oneflow.graph.binding import compile_and_bind
from oneflow.graph.compiling import device_index, trace_graph
from oneflow.graph.debugging import Debugging
from oneflow.graph.layout_assignment import take_layouts
from oneflow.graph.plans import Plans
from oneflow.graph.spec import GraphSpec
from oneflow.infer_compiler.types import from_torch, to_torch
from oneflow.kernels.array import Array
from oneflow.tensor.grad_mode import no_grad
from oneflow.tensor.tensor import Tensor, wrap

if TYPE_CHECKING:
    import torch

_numbers = itertools.count()


def order_of(x: torch.Tensor) -> tuple[int, ...] | None:
    """The order of dims in which `x` lies row by row; None if it does already, or in none."""
    if x.is_contiguous():
        return None
    order = tuple(sorted(range(x.ndim), key=x.stride, reverse=True))
    return order if x.permute(order).is_contiguous() else None


def is_dense(x: torch.Tensor) -> bool:
    """Whether a plan can read a tensor in its place."""
    return x.is_contiguous() or order_of(x) is not None


class Plan:
    """The plan of a program.

    args: example inputs; all others have their shapes and strides. held: positions of the tensors
    that it reads in place, which are dense. lent: indices of outputs that are returned in the
    plan's registers; its next run overwrites them, so ask `is_free` before. registers: those that
    plans have lent, by their addresses.
    """

    def __init__(
        self,
        program: Callable[[Sequence[Callable[[], Any]]], Sequence[Any]],
        args: Sequence[Any],
        held: Collection[int],
        lent: Collection[int],
        registers: dict[int, Any],
    ) -> None:
        import torch

        self._registers = registers
        given = {i: x for i, x in enumerate(args) if isinstance(x, torch.Tensor)}
        self._orders = {i: order_of(x) for i, x in given.items()}
        self._fed = [i for i in given if i not in held]
        self._numbers: dict[int, object] = {}
        tensors = {i: wrap(self._array(i, x)) for i, x in given.items()}
        spec = GraphSpec(name := f"torch_{next(_numbers)}", Debugging(name), Plans(1))

        def build(*fed: Tensor) -> list[Tensor]:
            values = {**tensors, **dict(zip(self._fed, fed, strict=True))}
            made = program([partial(self._input, i, values.get(i, x)) for i, x in enumerate(args)])
            self._numbers = {i: x for i, x in enumerate(made) if not isinstance(x, Tensor)}
            return [x for x in made if isinstance(x, Tensor)]

        with no_grad():
            trace = trace_graph(spec, build, tuple(tensors[i] for i in self._fed), {}).trace
        graph, variables = trace.graph, trace.variables
        self._outputs = [i for i in range(len(self._numbers) + len(graph.of_kind("output")))]
        self._outputs = [i for i in self._outputs if i not in self._numbers]
        self._lent = _lend(graph, {k for k, i in enumerate(self._outputs) if i in lent})
        self._job = compile_and_bind(
            graph,
            spec.job_config(),
            lambda plan: take_layouts(plan, {n: variables[n] for n in plan.graph.variables}, {}),
            device_index(variables.values()),
        )
        # A variable may be a detached tensor over the memory of an input.
        names = self._job.bound.plan.graph.variables
        places = {id(x._array): i for i, x in tensors.items()}
        owners = [(name, places.get(id(variables[name]._array))) for name in names]
        self._variables = [(name, i) for name, i in owners if i is not None]
        self._places = {i: given[i].data_ptr() for _, i in self._variables}
        self._borrowed: list[weakref.ref[Any]] = []

    @property
    def is_free(self) -> bool:
        """Whether no tensor shows the plan's registers any more."""
        return all(one() is None for one in self._borrowed)

    def run(self, args: Sequence[Any]) -> list[Any]:
        """Return the outputs."""
        places = self._places
        moved = [i for i, place in places.items() if args[i].data_ptr() != place]
        if moved:
            arrays = {i: self._array(i, args[i]) for i in moved}
            self._job.rebind({name: arrays[i] for name, i in self._variables if i in arrays})
            places.update((i, args[i].data_ptr()) for i in moved)
        feeds = {
            f"input.{k}": from_torch(self._rows(i, args[i]))._array for k, i in enumerate(self._fed)
        }
        results = self._job.run(feeds)
        self._borrowed = []
        made: list[Any] = [None] * (len(self._outputs) + len(self._numbers))
        for i, x in self._numbers.items():
            made[i] = x
        for k, i in enumerate(self._outputs):
            made[i] = self._returned(k, results[k])
        return made

    def _returned(self, index: int, array: Array) -> torch.Tensor:
        if index in self._lent:
            self._registers[array.ctypes.data] = array
            array = array[...]  # the tensor keeps this object
            self._borrowed.append(weakref.ref(array))
        return to_torch(wrap(array))

    def _array(self, index: int, x: torch.Tensor) -> Any:
        """The memory of a held tensor. A register's own array, if it is lent, does not count as one
        that shows it."""
        rows = self._rows(index, x)
        register = self._registers.get(x.data_ptr())
        if register is None or register.nbytes != rows.numel() * rows.element_size():
            return from_torch(rows)._array
        return register.reshape(rows.shape)

    def _rows(self, index: int, x: torch.Tensor) -> torch.Tensor:
        """The tensor's memory, row by row; a copy of the tensor if it is not dense."""
        order = self._orders[index]
        return x.contiguous() if order is None else x.permute(order)

    def _input(self, index: int, x: object) -> Any:
        """The value of an input, with its dims in their order."""
        order = self._orders.get(index)
        if order is None or not isinstance(x, Tensor):
            return x
        return x.permute(*(order.index(dim) for dim in range(len(order))))

    def close(self) -> None:
        """Free the plan's memory."""
        self._job.close()


def _lend(graph: LogicalGraph, wanted: Collection[int]) -> set[int]:
    """Let these outputs be returned in their registers, where they have some of their own. Returns
    their indices.
    """
    lent: set[int] = set()
    for node in graph.of_kind("output"):
        index, value = int(node.attrs["index"]), node.inputs[0]
        shared = value.node.op in ("variable", "input") or value.type.dtype.name not in LENDABLE
        if index in wanted and not shared:
            node.attrs = {**node.attrs, "lent": True}
            lent.add(index)
    return lent


LENDABLE = frozenset(("float32", "float64", "int64", "int32", "int8", "uint8", "bool"))
"""Types whose tensors keep NumPy's array itself."""
