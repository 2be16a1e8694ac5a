"""Models of diffusers compiled by onediff's `oneflow_compile`, beside themselves on PyTorch.

`python -m tests.clients.onediff_models MODEL...` prints for each model the largest difference
between the two for inputs of several shapes, relative to the largest output.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch

Inputs = Callable[[int], dict[str, Any]]
"""Inputs for images of a size."""

SIZES = (16, 24)

UNET = {
    "sample_size": 16,
    "layers_per_block": 1,
    "block_out_channels": (32, 64),
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    "cross_attention_dim": 32,
    "attention_head_dim": 8,
    "norm_num_groups": 8,
}

XL = {
    "sample_size": 16,
    "layers_per_block": 2,
    "block_out_channels": (32, 64),
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
    "attention_head_dim": (2, 4),
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 8,
    "transformer_layers_per_block": (1, 2),
    "projection_class_embeddings_input_dim": 80,  # 6 * 8 + 32
    "cross_attention_dim": 32,
    "norm_num_groups": 8,
}

VIDEO = {
    "sample_size": 16,
    "in_channels": 8,
    "out_channels": 4,
    "layers_per_block": 2,
    "block_out_channels": (32, 64),
    "down_block_types": ("CrossAttnDownBlockSpatioTemporal", "DownBlockSpatioTemporal"),
    "up_block_types": ("UpBlockSpatioTemporal", "CrossAttnUpBlockSpatioTemporal"),
    "num_attention_heads": 2,
    "projection_class_embeddings_input_dim": 96,
    "addition_time_embed_dim": 32,
    "cross_attention_dim": 32,
}


def text_inputs(size: int) -> dict[str, Any]:
    return {
        "sample": torch.randn(2, 4, size, size),
        "timestep": torch.tensor([size]),
        "encoder_hidden_states": torch.randn(2, 7, 32),
    }


def xl_inputs(size: int) -> dict[str, Any]:
    added = {"text_embeds": torch.randn(2, 32), "time_ids": torch.rand(2, 6)}
    return {**text_inputs(size), "added_cond_kwargs": added}


def video_inputs(size: int) -> dict[str, Any]:
    return {
        "sample": torch.randn(2, 3, 8, size, size),
        "timestep": torch.tensor(float(size)),
        # The same for both videos: onediff repeats them in the order of diffusers 0.27.
        "encoder_hidden_states": torch.randn(1, 1, 32).repeat(2, 1, 1),
        "added_time_ids": torch.rand(2, 3),
        "return_dict": False,  # as pipelines do; onediff's own class forgets to import the other
    }


def unet() -> tuple[Any, Inputs]:
    """A conditioned UNet."""
    from diffusers import UNet2DConditionModel

    return UNet2DConditionModel(**UNET), text_inputs


def sdxl() -> tuple[Any, Inputs]:
    """A UNet of the second Stable Diffusion XL's kind: two text encoders, sizes of the image."""
    from diffusers import UNet2DConditionModel

    return UNet2DConditionModel(**XL), xl_inputs


def svd() -> tuple[Any, Inputs]:
    """A UNet of Stable Video Diffusion's kind."""
    from diffusers import UNetSpatioTemporalConditionModel

    return UNetSpatioTemporalConditionModel(**VIDEO), video_inputs


def attention() -> tuple[Any, Inputs]:
    """A transformer over the pixels of an image."""
    from diffusers import Transformer2DModel

    model = Transformer2DModel(
        num_attention_heads=2,
        attention_head_dim=16,
        in_channels=32,
        norm_num_groups=8,
        cross_attention_dim=32,
    )

    def inputs(size: int) -> dict[str, Any]:
        return {
            "hidden_states": torch.randn(2, 32, size, size),
            "encoder_hidden_states": torch.randn(2, 7, 32),
        }

    return model, inputs


def autoencoder() -> tuple[Any, Inputs]:
    """An autoencoder, from images to images."""
    from diffusers import AutoencoderKL

    model = AutoencoderKL(block_out_channels=(16,), norm_num_groups=4, latent_channels=4)
    return model, lambda size: {"sample": torch.randn(2, 3, size, size)}


def difference(wanted: Any, found: Any) -> float:
    """The largest, relative to the largest wanted number, of tensors or trees of them."""
    if isinstance(wanted, list | tuple):
        assert len(wanted) == len(found)
        return max((difference(w, f) for w, f in zip(wanted, found, strict=True)), default=0.0)
    assert found.shape == wanted.shape and found.dtype == wanted.dtype
    return float((found - wanted).abs().max() / wanted.abs().max())


def first(output: Any) -> torch.Tensor:
    made: torch.Tensor = output[0] if isinstance(output, tuple) else output.sample
    return made


def compared(name: str) -> list[float]:
    """Differences by the size of the images. The second one needs another plan."""
    from onediff.infer_compiler import oneflow_compile

    model, inputs = globals()[name]()
    model.eval().requires_grad_(False)
    given = {size: inputs(size) for size in SIZES}
    wanted = {size: first(model(**given[size])) for size in given}
    compiled = oneflow_compile(model)
    found = {size: first(compiled(**given[size])) for size in (*SIZES, SIZES[0])}
    return [difference(wanted[size], found[size]) for size in given]


def cached_image() -> list[float]:
    """A step of DeepCache's UNet, then one of its fast twin from the cached features."""
    from onediffx.deep_cache.models.fast_unet_2d_condition import FastUNet2DConditionModel
    from onediffx.deep_cache.models.unet_2d_condition import UNet2DConditionModel

    whole = UNet2DConditionModel(**XL)
    place = {"cache_layer_id": 0, "cache_block_id": 0, "return_dict": False}
    return cached(whole, FastUNet2DConditionModel, xl_inputs, place, "replicate_prv_feature")


def cached_video() -> list[float]:
    """The same of Stable Video Diffusion."""
    from onediffx.deep_cache.models.fast_unet_spatio_temporal_condition import (
        FastUNetSpatioTemporalConditionModel,
    )
    from onediffx.deep_cache.models.unet_spatio_temporal_condition import (
        UNetSpatioTemporalConditionModel,
    )

    whole = UNetSpatioTemporalConditionModel(**VIDEO)
    place = {"cache_branch": 0, "return_dict": False}
    return cached(
        whole, FastUNetSpatioTemporalConditionModel, video_inputs, place, "cache_features"
    )


def cached(whole: Any, kind: Any, inputs: Inputs, place: dict[str, Any], name: str) -> list[float]:
    """Differences of a whole step and of a fast one, by the size of the images."""
    from onediff.infer_compiler import oneflow_compile

    fast = kind(whole).eval().requires_grad_(False)
    whole.eval().requires_grad_(False)
    compiled_whole, compiled_fast = oneflow_compile(whole), oneflow_compile(fast)
    differences = []
    for size in (*SIZES, SIZES[0]):
        given = {**inputs(size), **place}
        wanted, found = whole(**given), compiled_whole(**given)
        again = {**given, **inputs(size)}
        wanted_fast = fast(**again, **{name: wanted[1]})
        found_fast = compiled_fast(**again, **{name: found[1]})
        differences += [difference(wanted, found), difference(wanted_fast[0], found_fast[0])]
    return differences


def report(name: str) -> dict[str, Any]:
    """Differences of a model, or of a program of several."""
    torch.manual_seed(0)
    differences = globals()[name]() if name.startswith("cached_") else compared(name)
    return {"model": name, "differences": differences, "ok": max(differences) < 1e-5}


if __name__ == "__main__":
    for model in sys.argv[1:]:
        print(json.dumps(report(model)), flush=True)
