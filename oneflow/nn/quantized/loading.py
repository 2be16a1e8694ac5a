"""Models whose quantized weights lie in files of other programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any

from oneflow.core.dtype import float32
from oneflow.core.errors import CheckpointError
from oneflow.functional.from_data import tensor
from oneflow.io.checkpoint import load
from oneflow.nn.module import Module
from oneflow.nn.modules.linear import Linear as FloatLinear
from oneflow.nn.parameter import Parameter
from oneflow.nn.quantized.layouts import ENDINGS, Array, unpack
from oneflow.nn.quantized.modules import Linear
from oneflow.nn.quantized.packing import Packed
from oneflow.nn.quantized.quantize import replace_
from oneflow.tensor.tensor import Tensor

_KINDS: dict[str, tuple[str, tuple[object, ...]]] = {
    "awq": ("version", (None, "gemm", "GEMM")),
    "gptq": ("checkpoint_format", (None, "", "gptq", "gptq_v2")),
    "compressed-tensors": ("format", (None, "pack-quantized")),
}
"""Quantization methods: the key of config.json that names the layout, and those that are read."""


def load_quantized_(model: Module, path: str | PathLike[str], *, strict: bool = True) -> Any:
    """Load files of AutoAWQ, GPTQ or compressed-tensors into a model of float layers.

    The dense layers that the files have packed integers for are replaced by
    `nn.quantized.Linear`, bit by bit the same numbers; everything else is loaded as by
    `load_state_dict`. Activations stay floats even if the files say otherwise.

    Args:
        model: Its `nn.Linear` layers are replaced where they are.
        path: A safetensors file, or a folder of some with config.json.
        strict: Refuse files that lack tensors of the model, or have others.

    Returns:
        The result of `load_state_dict`: the names that are missing and those that are unexpected.

    Raises:
        CheckpointError: If the layout is another one, damaged, or does not fit the layer.

    Example:
        >>> import oneflow as flow
        >>> model = flow.nn.Sequential(flow.nn.Linear(512, 512, bias=False))
        >>> flow.nn.quantized.load_quantized_(model, "model-awq")  # doctest: +SKIP
        <All keys matched successfully>
    """
    folder = Path(path)
    config = _config_of(folder)
    files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else [folder]
    if not files:
        raise CheckpointError(f"load_quantized_: {folder} has no *.safetensors")
    state: dict[str, Tensor] = {}
    for file in files:
        state.update(load(file))
    packed: dict[str, dict[str, Tensor]] = {}
    for name in list(state):
        layer, _, last = name.rpartition(".")
        if last in ENDINGS:
            packed.setdefault(layer, {})[last] = state.pop(name)
    offset = 0 if config.get("checkpoint_format") == "gptq_v2" else 1

    def change(module: Module, name: str) -> Module | None:
        parts = packed.pop(name, None)
        return None if parts is None else _layer(module, name, parts, offset)

    replace_(model, change)
    if packed:
        listed = ", ".join(sorted(packed)[:5])
        raise CheckpointError(f"load_quantized_: {folder}: the model has no layers {listed}")
    state.update(_own_state(model))
    return model.load_state_dict(state, strict=strict)


def _own_state(model: Module) -> Iterator[tuple[str, Tensor]]:
    """The names and values of packed weights that are in the model already."""
    for name, module in model.named_modules():
        if isinstance(module, Linear):
            yield from ((f"{name}.{own}", buffer) for own, buffer in module.named_buffers())


def _config_of(folder: Path) -> dict[str, Any]:
    """Read a folder's description of its quantization. Raises CheckpointError for a layout that is
    not read."""
    path = folder / "config.json"
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text()).get("quantization_config") or {}
    except (ValueError, AttributeError) as error:
        raise CheckpointError(f"load_quantized_: {path} is no JSON object") from error
    method = found.get("quant_method")
    if not found:
        return {}
    if method not in _KINDS:
        raise CheckpointError(
            f"load_quantized_: {path} is of quant_method {method!r}; those that can be read are "
            f"{', '.join(_KINDS)}"
        )
    key, known = _KINDS[method]
    if found.get(key) not in known:
        listed = ", ".join(str(k) for k in known if k)
        raise CheckpointError(
            f"load_quantized_: {path} has {key} {found[key]!r} of {method}; can read {listed}"
        )
    return dict(found)


def _layer(module: Module, name: str, parts: dict[str, Tensor], zero_offset: int) -> Linear:
    if not isinstance(module, FloatLinear):
        kind = type(module).__name__
        raise CheckpointError(f"load_quantized_: {name} has packed weights, but is a {kind}")
    arrays = {
        own: (part.to(float32) if part.dtype.is_floating_point else part).numpy()
        for own, part in parts.items()
    }
    try:
        found = unpack(arrays, module.in_features, zero_offset)
    except CheckpointError as error:
        raise CheckpointError(f"load_quantized_: {name}: {error}") from error
    if len(found.weight) != module.out_features:
        raise CheckpointError(
            f"load_quantized_: {name} has {module.out_features} outputs, the file "
            f"{len(found.weight)}"
        )
    weight, scales = _on(module, found.weight), _on(module, found.scales)
    zeros = None if found.zeros is None else _on(module, found.zeros)
    order = None if found.order is None else _on(module, found.order)
    bias: Parameter | None = module.bias
    return Linear.from_packed(Packed(weight, scales, zeros, order), found.bits, bias)


def _on(module: FloatLinear, array: Array) -> Tensor:
    return tensor(array, device=module.weight.device)
