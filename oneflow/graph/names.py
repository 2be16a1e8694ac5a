"""Names in a graph before it is traced: parameters, buffers, states, modules."""

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
    for parameter in spec.parameters():
        if id(parameter) not in names:
            raise ValueError(
                f"Parameter <{parameter.meta}> is not in the corresponding nn.Graph/nn.Module."
            )
    for parameter, key, state in states_of(spec):
        names[id(state)] = f"{names[id(parameter)]}-{key}"
    names.update({id(tensor): name for name, tensor in scaler_states(spec).items()})
    return names


def states_of(spec: GraphSpec) -> Iterator[tuple[Tensor, str, Tensor]]:
    """Each parameter with a state that its optimizer keeps of it, and that one's key; states are
    made if they are not there yet.
    """
    for optimizer in spec.optimizers:
        for parameter in optimizer.parameters():
            states = optimizer.state_of(parameter)
            _split(spec, parameter, states)
            for key, state in states.items():
                if isinstance(state, Tensor):
                    yield parameter, key, state


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
    states = {names[id(state)]: state for _, _, state in states_of(spec)}
    return states | scaler_states(spec)


def scaler_states(spec: GraphSpec) -> dict[str, Tensor]:
    """States of the gradient scaler, by name."""
    if spec.scaler is None or not spec.optimizers:
        return {}
    return spec.scaler.tensors(spec.optimizers)


def buffers_of(spec: GraphSpec) -> list[tuple[Module, str, Tensor]]:
    """Every buffer, with the module that holds it and its name there."""
    return [
        (module, name, buffer)
        for top in spec.modules.values()
        for module in top.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
