"""A compiled FX graph as a function of PyTorch's tensors, which share their memory with ours."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from oneflow.graph.graph import Graph
from oneflow.infer_compiler.running import Program
from oneflow.infer_compiler.types import from_torch, to_torch
from oneflow.tensor.grad_mode import no_grad
from oneflow.tensor.tensor import Tensor

if TYPE_CHECKING:
    import torch

PLANS = 9
"""Plans of a graph for shapes of its inputs, and graphs for the places of its parameters."""

Place = tuple[int, tuple[int, ...], tuple[int, ...]]
"""Address, shape and strides of a tensor."""


class Statics:
    """Places of parameters and buffers, which a forward pass and its backward pass share: a graph
    reads them where they are, so that an optimizer's update is seen and nothing is copied.
    """

    def __init__(self) -> None:
        self.addresses: set[int] = set()

    def add(self, tensors: Sequence[torch.Tensor]) -> None:
        self.addresses.update(x.data_ptr() for x in tensors if x.numel())

    def hold(self, x: torch.Tensor) -> bool:
        return x.data_ptr() in self.addresses and x.is_contiguous()


class _Graph(Graph):
    """A program for some places of parameters: captured tensors are its variables."""

    @Graph.with_dynamic_input_shape()
    def __init__(self, program: Program, held: dict[int, Tensor], count: int) -> None:
        super().__init__()
        self._program, self._held, self._count = program, held, count

    def build(self, *moving: object) -> Any:
        rest = iter(moving)
        inputs = [self._held[i] if i in self._held else next(rest) for i in range(self._count)]
        return self._program(*inputs)


def keep(graph: Graph, plans: int) -> None:
    """Let a graph for inputs of many shapes keep so many plans."""
    cache = graph._dynamic_input_graph_cache
    if cache is not None:
        cache.set_cache_size(plans)


class Compiled:
    """Calls a program: one graph for each set of places of its static inputs, PLANS at most.

    strides: of each output that is to be laid out otherwise than row by row.
    """

    def __init__(self, program: Program, statics: Statics, use_graph: bool = True) -> None:
        self.program, self.statics, self.use_graph = program, statics, use_graph
        self.graphs: OrderedDict[tuple[tuple[int, Place], ...], _Graph] = OrderedDict()

    def __call__(self, *args: object) -> Any:
        import torch

        held: dict[int, torch.Tensor] = {}
        moving: list[object] = []
        for i, x in enumerate(args):
            if not isinstance(x, torch.Tensor):
                moving.append(x)
            elif self.statics.hold(x):
                held[i] = x
            else:
                moving.append(from_torch(x))
        with no_grad():
            outputs = self._graph_for(held, len(args))(*moving)
        if isinstance(outputs, Tensor):  # of a part between operators of PyTorch's
            return to_torch(outputs)
        return [to_torch(x) if isinstance(x, Tensor) else x for x in outputs]

    def _graph_for(self, held: dict[int, torch.Tensor], count: int) -> Callable[..., Any]:
        key = tuple((i, _place(x)) for i, x in held.items())
        found = self.graphs.get(key)
        if found is None:
            ours = {i: from_torch(x) for i, x in held.items()}
            found = self.graphs[key] = _Graph(self.program, ours, count)
            keep(found, PLANS)
            if len(self.graphs) > PLANS:
                self.graphs.popitem(last=False)
        self.graphs.move_to_end(key)
        return found if self.use_graph else found.build


def _place(x: torch.Tensor) -> Place:
    return x.data_ptr(), tuple(x.shape), tuple(x.stride())
