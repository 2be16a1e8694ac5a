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


def unet() -> tuple[Any, Callable[[int], dict[str, Any]]]:
    """A conditioned UNet and its inputs for images of some size."""
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(
        sample_size=16,
        layers_per_block=1,
        block_out_channels=(32, 64),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=32,
        attention_head_dim=8,
        norm_num_groups=8,
    )

    def inputs(size: int) -> dict[str, Any]:
        return {
            "sample": torch.randn(2, 4, size, size),
            "timestep": torch.tensor([size]),
            "encoder_hidden_states": torch.randn(2, 7, 32),
        }

    return model, inputs


def attention() -> tuple[Any, Callable[[int], dict[str, Any]]]:
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


def autoencoder() -> tuple[Any, Callable[[int], dict[str, Any]]]:
    """An autoencoder, from images to images."""
    from diffusers import AutoencoderKL

    model = AutoencoderKL(block_out_channels=(16,), norm_num_groups=4, latent_channels=4)
    return model, lambda size: {"sample": torch.randn(2, 3, size, size)}


def difference(wanted: torch.Tensor, found: torch.Tensor) -> float:
    """The largest, relative to the largest wanted number."""
    assert found.shape == wanted.shape and found.dtype == wanted.dtype
    return float((found - wanted).abs().max() / wanted.abs().max())


def report(name: str) -> dict[str, Any]:
    """Differences by the size of the images. The second one needs another plan."""
    from onediff.infer_compiler import oneflow_compile

    torch.manual_seed(0)
    model, inputs = globals()[name]()
    model.eval().requires_grad_(False)
    given = {size: inputs(size) for size in (16, 24)}
    wanted = {size: model(**given[size]).sample for size in given}
    compiled = oneflow_compile(model)
    found = {size: compiled(**given[size]).sample for size in (16, 24, 16)}
    differences = [difference(wanted[size], found[size]) for size in given]
    return {"model": name, "differences": differences, "ok": max(differences) < 1e-4}


if __name__ == "__main__":
    for model in sys.argv[1:]:
        print(json.dumps(report(model)), flush=True)
