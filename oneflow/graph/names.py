"""Names of what a graph holds before it is traced: parameters, buffers, states, modules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from oneflow.nn.module import Module
from oneflow.scheduler.compiler.rewrite.zero import split_layout
from oneflow.tensor.tensor import Tensor

if TYPE_CHECKING:
    from oneflow.graph.spec import GraphSpec


CAPTURED = "free."
"""The beginning of the names of tensors that `build` reads and that the graph does not know
beforehand; a number follows."""


def names_of(spec: GraphSpec) -> dict[int, str]:
    """Name of every tensor that the graph knows beforehand, by the tensor's id. Raises ValueError
    for a parameter of an optimizer that is in none of the graph's modules."""
    names = model_names(spec)
    for optimizer in spec.optimizers:
        for parameter in optimizer.parameters():
            if id(parameter) not in names:
                raise ValueError(
                    f"Parameter <{parameter.meta}> is not in the corresponding nn.Graph/nn.Module."
                )
            states = optimizer.state_of(parameter)
            _split(spec, parameter, states)
            for key, tensor in states.items():
                if isinstance(tensor, Tensor):
                    names[id(tensor)] = f"{names[id(parameter)]}-{key}"
    names.update({id(tensor): name for name, tensor in _scaler_states(spec).items()})
    return names


def _split(spec: GraphSpec, parameter: Tensor, states: dict[str, Any]) -> None:
    """Let states that ZeRO is going to split be in parts as soon as they are made: whole, those of
    all parameters might not fit in the memory of a rank.
    """
    zero, lies = spec.config.zero, parameter._sbp
    if zero is None or spec.config.auto_parallel or lies is None:
        return
    layout = split_layout(parameter.meta, parameter.placement, lies, zero.min_size)
    for key, state in states.items() if layout is not None else ():
        if isinstance(state, Tensor) and (state.meta.shape, state._sbp) == (
            parameter.meta.shape,
            lies,
        ):
            states[key] = state.detach().to_global(sbp=layout)


def owners_of_states(spec: GraphSpec) -> dict[int, str]:
    """The name of the parameter whose state a tensor is, by the tensor's id."""
    names = model_names(spec)
    return {
        id(tensor): names[id(parameter)]
        for optimizer in spec.optimizers
        for parameter in optimizer.parameters()
        for tensor in optimizer.state_of(parameter).values()
        if isinstance(tensor, Tensor)
    }


def model_names(spec: GraphSpec) -> dict[int, str]:
    """Names of parameters and buffers."""
    names: dict[int, str] = {}
    for prefix, module in spec.modules.items():
        for name, tensor in (*module.named_parameters(prefix), *module.named_buffers(prefix)):
            names.setdefault(id(tensor), name)
    return names


def model_tensors(spec: GraphSpec) -> Iterator[Tensor]:
    """Parameters and buffers."""
    for module in spec.modules.values():
        yield from module.parameters()
        yield from module.buffers()


def states_by_name(spec: GraphSpec) -> dict[str, Tensor]:
    """States of the optimizers, in their order, and of the gradient scaler."""
    names = names_of(spec)
    return {names[id(t)]: t for t in _states(spec)}


def _states(spec: GraphSpec) -> Iterator[Tensor]:
    for optimizer in spec.optimizers:
        for parameter in optimizer.parameters():
            for tensor in optimizer.state_of(parameter).values():
                if isinstance(tensor, Tensor):
                    yield tensor
    yield from _scaler_states(spec).values()


def _scaler_states(spec: GraphSpec) -> dict[str, Tensor]:
    if spec.scaler is None or not spec.optimizers:
        return {}
    return spec.scaler.tensors(spec.optimizers)


def owners_of(spec: GraphSpec) -> dict[int, Tensor]:
    """Every tensor that has a name, by the id of its array."""
    known = *model_tensors(spec), *_states(spec)
    return {id(t._array): t for t in known if t._array is not None}


def buffers_of(spec: GraphSpec) -> list[tuple[Module, str, Tensor]]:
    """Every buffer, with the module that holds it and its name there."""
    return [
        (module, name, buffer)
        for top in spec.modules.values()
        for module in top.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
