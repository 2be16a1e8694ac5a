"""The nodes of onediff_comfy_nodes in ComfyUI, on a small UNet of half floats, beside PyTorch.

`python -m tests.clients.comfy_nodes FOLDER`: a checkout of ComfyUI of July 2024, with
onediff_comfy_nodes in custom_nodes. Prints the largest difference of a sampled latent image, as a
part of its largest number: for ModelSpeedup, and for ModuleDeepCacheSpeedup, whose every second
step is a cached one.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

import torch

UNET = {
    "image_size": 32,
    "in_channels": 4,
    "out_channels": 4,
    "model_channels": 32,
    "num_res_blocks": [1, 1],
    "channel_mult": [1, 2],
    "transformer_depth": [1, 1],
    "transformer_depth_output": [1, 1, 1, 1],
    "transformer_depth_middle": 1,
    "context_dim": 32,
    "num_heads": 4,
    "num_head_channels": -1,
    "use_spatial_transformer": True,
    "legacy": False,
    "use_linear_in_transformer": False,
    "adm_in_channels": None,
    "dtype": torch.float16,  # onediff compiles no other
}


_LIBRARY = torch.library.Library("torchvision", "FRAGMENT")
"""The operators that a wheel of torchvision for another build of PyTorch lacks. None is used."""


def prepare(folder: str) -> None:
    """Let ComfyUI run from its folder on the CPU, in the mocked world as well, whose own
    `comfy.options` nobody tells to read the command line."""
    parse = argparse.ArgumentParser.parse_args

    def on_cpu(self: Any, args: Any = None, namespace: Any = None) -> Any:
        return parse(self, ["--cpu"] if args == [] else args, namespace)

    argparse.ArgumentParser.parse_args = on_cpu  # type: ignore[method-assign, assignment]
    sys.argv = ["main.py"]
    sys.path[:0] = [folder, os.path.join(folder, "custom_nodes")]
    os.chdir(folder)
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            _LIBRARY.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def patcher() -> Any:
    """ComfyUI's holder of a model, of random weights."""
    import comfy.model_base
    import comfy.model_patcher
    import comfy.supported_models

    configuration = comfy.supported_models.SD15(dict(UNET))
    configuration.unet_config.update(UNET)
    model = comfy.model_base.BaseModel(configuration, device="cpu")
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.05)
    model.eval().diffusion_model.half()
    return comfy.model_patcher.ModelPatcher(model, torch.device("cpu"), torch.device("cpu"))


def sampled(model: Any) -> torch.Tensor:
    import comfy.sample

    latent = torch.zeros(1, 4, 16, 16)
    noise = comfy.sample.prepare_noise(latent, 1)
    torch.manual_seed(1)
    texts = [[[torch.randn(1, 7, 32), {}]] for _ in range(2)]
    made: torch.Tensor = comfy.sample.sample(
        model, noise, 4, 7.0, "euler", "normal", *texts, latent, denoise=1.0, disable_pbar=True
    )
    return made


def main(folder: str) -> dict[str, Any]:
    prepare(folder)
    import nodes  # noqa: F401 - before comfy, as ComfyUI's own program does

    torch.manual_seed(0)
    model = patcher()
    wanted = sampled(model)
    import onediff_comfy_nodes

    made = onediff_comfy_nodes.NODE_CLASS_MAPPINGS

    def far(fast: Any) -> float:
        return float((sampled(fast) - wanted).abs().max() / wanted.abs().max())

    (fast,) = made["ModelSpeedup"]().speedup(model, inplace=False)
    found = {"ModelSpeedup": far(fast)}
    compiled = type(fast.model.diffusion_model).__name__
    cached = made["ModuleDeepCacheSpeedup"]()
    deep = getattr(cached, cached.FUNCTION)(model, "enable", 2, 0, 0, 0, 1000)[0]
    found["ModuleDeepCacheSpeedup"] = far(deep)
    return {"differences": found, "compiled": compiled, "nodes": sorted(made)}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])), flush=True)
