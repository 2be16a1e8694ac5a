"""The form of a decoder, from the config.json of a Hugging Face folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from oneflow.core.errors import ModelError


@dataclass(frozen=True)
class Rotation:
    """Rotary positions. theta: their base. kind: "default", "linear" or "llama3", with `options` as
    config.json has them."""

    theta: float
    kind: str
    options: dict[str, float]


@dataclass(frozen=True)
class DecoderConfig:
    """Facts of a decoder.

    shared: heads of keys and values. depth: of a head. inner: width of the feed-forward layers.
    positions: tokens of a sequence at most. windows: tokens that each layer sees, 0: all.
    rotation: None: positions are learned. is_rms, is_gated: the kinds of norms and of feed-forward
    layers. stops: tokens that end a text.
    """

    family: str
    words: int
    width: int
    layers: int
    heads: int
    shared: int
    depth: int
    inner: int
    positions: int
    eps: float
    activation: str
    rotation: Rotation | None
    windows: tuple[int, ...]
    is_rms: bool
    is_gated: bool
    has_qkv_bias: bool
    has_out_bias: bool
    has_inner_bias: bool
    is_tied: bool
    stops: tuple[int, ...] = ()


def load_config(folder: Path) -> DecoderConfig:
    """Read config.json and generation_config.json. Raises ModelError for a model that cannot be
    served.
    """
    table = read_json(folder / "config.json")
    kind = table.get("model_type")
    if kind not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise ModelError(f"{folder}: model_type {kind!r} cannot be served; known are {known}")
    try:
        _check_numbers(table)
        return replace(FAMILIES[kind](table), stops=_stops(folder, table))
    except KeyError as error:
        raise ModelError(f"{folder / 'config.json'}: {error} is missing for {kind}") from None
    except (TypeError, ValueError) as error:
        raise ModelError(f"{folder / 'config.json'}: {error}") from None


MAY_BE_ZERO = ("sliding_window", "max_window_layers")
COUNTS = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "head_dim"),
    *("num_key_value_heads", "intermediate_size", "max_position_embeddings"),
    *("n_embd", "n_head", "n_layer", "n_inner", "n_positions"),
    *MAY_BE_ZERO,
)
REALS = ("rms_norm_eps", "layer_norm_epsilon", "rope_theta")


def _check_numbers(table: dict[str, Any]) -> None:
    """Raise ValueError for a text or a negative number in the place of a size. null is allowed."""
    for name in (*COUNTS, *REALS):
        value, least = table.get(name), int(name not in (*MAY_BE_ZERO, *REALS))
        kinds = (int,) if name in COUNTS else (int, float)
        if value is None:
            continue
        if type(value) not in kinds or value < least:
            kind = "whole number" if name in COUNTS else "number"
            raise ValueError(f"{name} must be a {kind} of at least {least}, not {value!r}")


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises ModelError."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: {error}") from None
    if not isinstance(found, dict):
        raise ModelError(f"{path}: needs an object, got {type(found).__name__}")
    return found


def _stops(folder: Path, table: dict[str, Any]) -> tuple[int, ...]:
    """End-of-text tokens: those of generation_config.json come first."""
    path = folder / "generation_config.json"
    found = read_json(path).get("eos_token_id") if path.exists() else None
    found = table.get("eos_token_id") if found is None else found
    listed = found if isinstance(found, list) else [found]
    return tuple(int(token) for token in listed if token is not None)


def _llama(table: dict[str, Any]) -> DecoderConfig:
    heads, width = table["num_attention_heads"], table["hidden_size"]
    layers, bias = table["num_hidden_layers"], bool(table.get("attention_bias", False))
    return DecoderConfig(
        family=table["model_type"],
        words=table["vocab_size"],
        width=width,
        layers=layers,
        heads=heads,
        shared=table.get("num_key_value_heads") or heads,
        depth=table.get("head_dim") or width // heads,
        inner=table["intermediate_size"],
        positions=table["max_position_embeddings"],
        eps=table["rms_norm_eps"],
        activation=_activation(table["hidden_act"]),
        rotation=_rotation(table),
        windows=(0,) * layers,
        is_rms=True,
        is_gated=True,
        has_qkv_bias=bias,
        has_out_bias=bias,
        has_inner_bias=bool(table.get("mlp_bias", False)),
        is_tied=bool(table.get("tie_word_embeddings", False)),
    )


def _mistral(table: dict[str, Any]) -> DecoderConfig:
    window = table.get("sliding_window") or 0
    config = _llama(table | {"attention_bias": False, "mlp_bias": False})
    return replace(config, windows=(window,) * config.layers)


def _qwen2(table: dict[str, Any]) -> DecoderConfig:
    """Windows are those of the layers that `layer_types` names; in older files, of all layers from
    `max_window_layers` on."""
    config = _llama(table | {"mlp_bias": False})
    window = (table.get("sliding_window") or 0) if table.get("use_sliding_window") else 0
    first = table.get("max_window_layers", config.layers)
    kinds = table.get("layer_types") or [
        "sliding_attention" if i >= first else "full_attention" for i in range(config.layers)
    ]
    windows = tuple(window if kind == "sliding_attention" else 0 for kind in kinds)
    return replace(config, windows=windows, has_qkv_bias=True, has_out_bias=False)


def _gpt2(table: dict[str, Any]) -> DecoderConfig:
    for name in ("scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn"):
        if table.get(name):
            raise ModelError(f"gpt2: {name} is not supported")
    if not table.get("scale_attn_weights", True):
        raise ModelError("gpt2: scale_attn_weights=False is not supported")
    width, heads, layers = table["n_embd"], table["n_head"], table["n_layer"]
    return DecoderConfig(
        family="gpt2",
        words=table["vocab_size"],
        width=width,
        layers=layers,
        heads=heads,
        shared=heads,
        depth=width // heads,
        inner=table.get("n_inner") or 4 * width,
        positions=table["n_positions"],
        eps=table["layer_norm_epsilon"],
        activation=_activation(table["activation_function"]),
        rotation=None,
        windows=(0,) * layers,
        is_rms=False,
        is_gated=False,
        has_qkv_bias=True,
        has_out_bias=True,
        has_inner_bias=True,
        is_tied=bool(table.get("tie_word_embeddings", True)),
    )


FAMILIES: dict[str, Callable[[dict[str, Any]], DecoderConfig]] = {
    "gpt2": _gpt2,
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
}
ACTIVATIONS = ("silu", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu")


def _activation(name: str) -> str:
    if name not in ACTIVATIONS:
        raise ModelError(f"activation {name!r} is not supported; known are {ACTIVATIONS}")
    return name


ROTATIONS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": (
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    ),
}


def _rotation(table: dict[str, Any]) -> Rotation:
    """Read `rope_parameters` of newer files, or `rope_theta` and `rope_scaling`."""
    found = table.get("rope_parameters") or table.get("rope_scaling") or {}
    kind = found.get("rope_type") or found.get("type") or "default"
    if kind not in ROTATIONS:
        known = ", ".join(ROTATIONS)
        raise ModelError(f"rope_type {kind!r} is not supported; known are {known}")
    theta = found.get("rope_theta") or table.get("rope_theta") or 10000.0
    return Rotation(float(theta), kind, {name: float(found[name]) for name in ROTATIONS[kind]})
