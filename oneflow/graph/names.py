"""Names of what a graph holds before it is traced: parameters, buffers, states, modules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from oneflow.nn.module import Module
from oneflow.scheduler.compiler.rewrite.zero import split_layout
from oneflow.tensor.tensor import Tensor

if TYPE_CHECKING:
    from oneflow.graph.graph import Graph


def names_of(graph: Graph) -> dict[int, str]:
    """Name of every tensor that the graph knows beforehand, by the tensor's id. Raises ValueError
    for a parameter of an optimizer that is in none of the graph's modules."""
    names = model_names(graph)
    for optimizer in graph._optimizers:
        for parameter in optimizer.parameters():
            if id(parameter) not in names:
                raise ValueError(
                    f"Parameter <{parameter.meta}> is not in the corresponding nn.Graph/nn.Module."
                )
            states = optimizer.state_of(parameter)
            _split(graph, parameter, states)
            for key, tensor in states.items():
                if isinstance(tensor, Tensor):
                    names[id(tensor)] = f"{names[id(parameter)]}-{key}"
    names.update({id(tensor): name for name, tensor in _scaler_states(graph).items()})
    return names


def _split(graph: Graph, parameter: Tensor, states: dict[str, Any]) -> None:
    """Let states that ZeRO is going to split be in parts as soon as they are made: whole, those of
    all parameters might not fit in the memory of a rank.
    """
    zero, lies = graph.config.zero, parameter._sbp
    if zero is None or graph.config.auto_parallel or lies is None:
        return
    layout = split_layout(parameter.meta, parameter.placement, lies, zero.min_size)
    for key, state in states.items() if layout is not None else ():
        if isinstance(state, Tensor) and (state.meta.shape, state._sbp) == (
            parameter.meta.shape,
            lies,
        ):
            states[key] = state.detach().to_global(sbp=layout)


def owners_of_states(graph: Graph) -> dict[int, str]:
    """The name of the parameter whose state a tensor is, by the tensor's id."""
    names = model_names(graph)
    return {
        id(tensor): names[id(parameter)]
        for optimizer in graph._optimizers
        for parameter in optimizer.parameters()
        for tensor in optimizer.state_of(parameter).values()
        if isinstance(tensor, Tensor)
    }


def model_names(graph: Graph) -> dict[int, str]:
    """Names of parameters and buffers."""
    names: dict[int, str] = {}
    for prefix, module in graph._modules.items():
        for name, tensor in (*module.named_parameters(prefix), *module.named_buffers(prefix)):
            names.setdefault(id(tensor), name)
    return names


def model_tensors(graph: Graph) -> Iterator[Tensor]:
    """Parameters and buffers."""
    for module in graph._modules.values():
        yield from module.parameters()
        yield from module.buffers()


def states_by_name(graph: Graph) -> dict[str, Tensor]:
    """States of the optimizers, in their order, and of the gradient scaler."""
    names = names_of(graph)
    return {names[id(t)]: t for t in _states(graph)}


def _states(graph: Graph) -> Iterator[Tensor]:
    for optimizer in graph._optimizers:
        for parameter in optimizer.parameters():
            for tensor in optimizer.state_of(parameter).values():
                if isinstance(tensor, Tensor):
                    yield tensor
    yield from _scaler_states(graph).values()


def _scaler_states(graph: Graph) -> dict[str, Tensor]:
    if graph._scaler is None or not graph._optimizers:
        return {}
    return graph._scaler.tensors(graph._optimizers)


def owners_of(graph: Graph) -> dict[int, Tensor]:
    """Every tensor that has a name, by the id of its array."""
    known = *model_tensors(graph), *_states(graph)
    return {id(t._array): t for t in known if t._array is not None}


def buffers_of(graph: Graph) -> list[tuple[Module, str, Tensor]]:
    """Every buffer, with the module that holds it and its name there."""
    return [
        (module, name, buffer)
        for top in graph._modules.values()
        for module in top.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]


def paths_of(graph: Graph) -> dict[int, str]:
    """Path of every module, by its id."""
    paths: dict[int, str] = {}
    for prefix, module in graph._modules.items():
        for name, child in module.named_modules(prefix=prefix):
            paths.setdefault(id(child), name)
    return paths
