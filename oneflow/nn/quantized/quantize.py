"""The choice of the layers that are quantized, and of how their weights are rounded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from oneflow.core.errors import ArgumentError
from oneflow.nn.module import Module
from oneflow.nn.modules.linear import Linear as FloatLinear
from oneflow.nn.modules.sparse import Embedding as FloatEmbedding
from oneflow.nn.quantized.modules import Embedding, Linear
from oneflow.nn.quantized.packing import Packed, pack
from oneflow.tensor.tensor import Tensor


@dataclass(frozen=True)
class Int8WeightOnlyConfig:
    """Integers of 8 bits around 0.

    group_size: neighbouring inputs with one scale; None for one scale an output channel.
    """

    group_size: int | None = None
    bits: ClassVar[int] = 8

    def pack(self, weight: Tensor) -> Packed:
        """Round a weight (out, in)."""
        return pack(weight, self.bits, self.group_size)


@dataclass(frozen=True)
class Int4WeightOnlyConfig:
    """Integers of 4 bits around 0, with a scale for each group.

    group_size: neighbouring inputs of a group: 32, 64 or 128. Small groups are more accurate, and
    larger in all: a scale has the dtype of the weight.
    """

    group_size: int = 128
    bits: ClassVar[int] = 4

    def pack(self, weight: Tensor) -> Packed:
        """Round a weight (out, in)."""
        return pack(weight, self.bits, self.group_size)


Config: TypeAlias = Int8WeightOnlyConfig | Int4WeightOnlyConfig


def quantize_(
    model: Module, config: Config, filter_fn: Callable[[Module, str], bool] | None = None
) -> Module:
    """Replace dense layers of a model by layers with integers as weights, and return the model.

    Args:
        model: Its layers are replaced where they are; a layer found twice stays one.
        config: How weights are rounded.
        filter_fn: Of a module and its name in the model: whether to replace it. Without one,
            every `nn.Linear` is, but no class derived from it. `nn.Embedding` can be chosen.

    Raises:
        ArgumentError: If filter_fn chooses another layer, groups do not divide a layer's inputs,
            or the model itself is chosen, which has no place to be replaced in.

    Example:
        >>> import oneflow as flow
        >>> model = flow.nn.Sequential(flow.nn.Linear(64, 64), flow.nn.ReLU())
        >>> flow.nn.quantized.quantize_(model, flow.nn.quantized.Int8WeightOnlyConfig())
        Sequential(
          (0): Linear(in_features=64, out_features=64, bias=True, bits=8, group_size=64)
          (1): ReLU()
        )
    """
    is_chosen = _is_plain if filter_fn is None else filter_fn
    if is_chosen(model, ""):
        raise ArgumentError(
            f"quantize_: the model is itself a {type(model).__name__}, which has no place to be "
            "replaced in; use nn.quantized.Linear.from_float"
        )
    replace_(model, lambda module, name: _made(module, name, config, is_chosen))
    return model


def replace_(model: Module, change: Callable[[Module, str], Module | None]) -> None:
    """Put `change(module, name)` in the place of each module that it is not None for."""
    made: dict[Module, Module | None] = {}
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if not name:
            continue
        if module not in made:
            made[module] = change(module, name)
        found = made[module]
        if found is not None:
            parent, _, own = name.rpartition(".")
            found.train(module.training)
            setattr(model.get_submodule(parent), own, found)


def _is_plain(module: Module, _: str) -> bool:
    """Derived classes may multiply in ways of their own."""
    return type(module) is FloatLinear


def _made(
    module: Module, name: str, config: Config, is_chosen: Callable[[Module, str], bool]
) -> Module | None:
    if not is_chosen(module, name):
        return None
    try:
        if isinstance(module, FloatLinear):
            return Linear.from_float(module, config)
        if isinstance(module, FloatEmbedding):
            return Embedding.from_float(module, config)
    except ArgumentError as error:
        raise ArgumentError(f"quantize_: {name}: {error}") from error
    raise ArgumentError(
        f"quantize_: {name} is a {type(module).__name__}; filter_fn may choose nn.Linear and "
        "nn.Embedding"
    )
