"""Models of libraries written for PyTorch, run on PyTorch and on oneflow under mock_torch.

`python -m tests.clients.torch_names torch FOLDER [names]` saves the models and their results;
`... oneflow FOLDER [names]` loads the same safetensors files and compares. Each prints one line of
JSON a model.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .torch_tables import DIFFUSERS, TEXT, TIMM, TORCHVISION, TRANSFORMERS, WORDS

CASES: dict[str, Callable[[Any, Path, bool], tuple[Any, Callable[[Any], Any]]]] = {}


def case(function: Any) -> Any:
    """Enter a function (torch, folder, first) -> (module or None, call of it) under its name."""
    CASES[function.__name__] = function
    return function


def saved(cls: Any, config: Any, folder: Path, first: bool) -> Any:
    """A model that the first run makes and saves, and the other loads."""
    model = cls.from_config(config) if isinstance(config, dict) else cls(config)
    return first_values(model, folder, first)


def numbers(torch: Any, *shape: int) -> Any:
    rng = np.random.default_rng(len(shape))
    return torch.tensor(rng.standard_normal(shape).astype(np.float32))


def words(torch: Any, *shape: int) -> Any:
    return torch.tensor(np.random.default_rng(0).integers(0, WORDS, shape))


@case
def llama(torch: Any, folder: Path, first: bool) -> Any:
    from transformers.models.llama import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaForCausalLM

    config = LlamaConfig(**TEXT, num_key_value_heads=2)
    model = saved(LlamaForCausalLM, config, folder, first)
    return model, lambda m: m(words(torch, 2, 7)).logits


@case
def llama_generate(torch: Any, folder: Path, first: bool) -> Any:
    model, _ = llama(torch, folder, first)
    return None, lambda _: model.generate(words(torch, 2, 7), max_new_tokens=5, do_sample=False)


@case
def bert(torch: Any, folder: Path, first: bool) -> Any:
    from transformers.models.bert import BertConfig
    from transformers.models.bert.modeling_bert import BertForMaskedLM

    model = saved(BertForMaskedLM, BertConfig(**TEXT), folder, first)
    mask = torch.tensor([[1] * 7, [1] * 5 + [0] * 2])
    return model, lambda m: m(words(torch, 2, 7), attention_mask=mask).logits


@case
def gpt2(torch: Any, folder: Path, first: bool) -> Any:
    from transformers.models.gpt2 import GPT2Config
    from transformers.models.gpt2.modeling_gpt2 import GPT2LMHeadModel

    config = GPT2Config(vocab_size=WORDS, n_embd=32, n_layer=2, n_head=4)
    model = saved(GPT2LMHeadModel, config, folder, first)
    return model, lambda m: m(words(torch, 2, 7)).logits


@case
def t5(torch: Any, folder: Path, first: bool) -> Any:
    from transformers.models.t5 import T5Config
    from transformers.models.t5.modeling_t5 import T5ForConditionalGeneration

    config = T5Config(
        vocab_size=WORDS, d_model=32, d_kv=8, d_ff=37, num_layers=2, num_heads=4,
        decoder_start_token_id=0,
    )  # fmt: skip
    model = saved(T5ForConditionalGeneration, config, folder, first)
    ids = words(torch, 2, 7)
    return model, lambda m: m(input_ids=ids, decoder_input_ids=ids).logits


@case
def vit(torch: Any, folder: Path, first: bool) -> Any:
    from transformers.models.vit import ViTConfig
    from transformers.models.vit.modeling_vit import ViTModel

    config = ViTConfig(**TEXT, image_size=30, patch_size=5)
    model = saved(ViTModel, config, folder, first)
    return model, lambda m: m(numbers(torch, 2, 3, 30, 30)).last_hidden_state


@case
def clip_text(torch: Any, folder: Path, first: bool) -> Any:
    from transformers.models.clip import CLIPTextConfig
    from transformers.models.clip.modeling_clip import CLIPTextModel

    model = saved(CLIPTextModel, CLIPTextConfig(**TEXT), folder, first)
    return model, lambda m: m(words(torch, 2, 7)).last_hidden_state


@case
def unet(torch: Any, folder: Path, first: bool) -> Any:
    from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel

    config = {
        "sample_size": 16, "in_channels": 4, "out_channels": 4, "layers_per_block": 1,
        "block_out_channels": (32, 64), "cross_attention_dim": 32, "attention_head_dim": 8,
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
    }  # fmt: skip
    model = saved(UNet2DConditionModel, config, folder, first)
    image, text = numbers(torch, 2, 4, 16, 16), numbers(torch, 2, 7, 32)
    return model, lambda m: m(image, torch.tensor([10, 500]), encoder_hidden_states=text).sample


@case
def autoencoder(torch: Any, folder: Path, first: bool) -> Any:
    from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL

    config = {
        "in_channels": 3, "out_channels": 3, "latent_channels": 4, "block_out_channels": (32, 64),
        "down_block_types": ("DownEncoderBlock2D",) * 2,
        "up_block_types": ("UpDecoderBlock2D",) * 2,
    }  # fmt: skip
    model = saved(AutoencoderKL, config, folder, first)
    return model, lambda m: m(numbers(torch, 2, 3, 32, 32)).sample


def steps_of(scheduler: Any, torch: Any) -> Any:
    scheduler.set_timesteps(6)
    sample = numbers(torch, 2, 4, 8, 8)
    for t in scheduler.timesteps:
        noise = scheduler.scale_model_input(sample, t) * 0.3
        sample = scheduler.step(noise, t, sample).prev_sample
    return sample


def _schedulers() -> None:
    for name, file in {
        "DDIMScheduler": "ddim",
        "PNDMScheduler": "pndm",
        "EulerDiscreteScheduler": "euler_discrete",
        "DPMSolverMultistepScheduler": "dpmsolver_multistep",
        "LMSDiscreteScheduler": "lms_discrete",
        "UniPCMultistepScheduler": "unipc_multistep",
        "HeunDiscreteScheduler": "heun_discrete",
    }.items():

        def build(torch: Any, folder: Path, first: bool, name: str = name, file: str = file) -> Any:
            import importlib

            module = importlib.import_module(f"diffusers.schedulers.scheduling_{file}")
            return None, lambda _: steps_of(getattr(module, name)(), torch)

        CASES[name] = build


def first_values(model: Any, folder: Path, first: bool) -> Any:
    """Save a new model, of which no parameter is zero and hides others; or load the saved one."""
    from safetensors.torch import load_model, save_model

    if first:
        for parameter in model.parameters():
            if not parameter.any():
                parameter.data.normal_(0, 0.02)
        save_model(model, str(folder / "model.safetensors"))
    else:
        load_model(model, str(folder / "model.safetensors"))
    return model.eval()


def _timm(name: str, size: int, options: dict[str, Any]) -> None:
    def build(torch: Any, folder: Path, first: bool) -> Any:
        import timm

        model = first_values(timm.create_model(name, **options), folder, first)
        return model, lambda m: m(numbers(torch, 2, 3, size, size))

    CASES[f"timm.{name}"] = build


def _vision(name: str, size: int) -> None:
    def build(torch: Any, folder: Path, first: bool) -> Any:
        import importlib

        package, _, function = f"torchvision.models.{name}".rpartition(".")
        options = {"weights": None}
        if "segmentation" in name:
            options["weights_backbone"] = None
        model = getattr(importlib.import_module(package), function)(**options)
        image = numbers(torch, 2, 3, size, size)
        return first_values(model, folder, first), lambda m: result_of(m(image))

    CASES[f"torchvision.{name}"] = build


def result_of(out: Any) -> Any:
    """The first tensor of a model's results."""
    while not hasattr(out, "detach"):
        out = next(iter(out.values())) if isinstance(out, dict) else out[0]
    return out


def arguments(kind: str, torch: Any) -> dict[str, Any]:
    """The inputs of a model of transformers."""
    ids = words(torch, 2, 7)
    if kind == "masked":
        return {"input_ids": ids, "attention_mask": torch.tensor([[1] * 7, [1] * 5 + [0] * 2])}
    if kind == "both":
        return {"input_ids": ids, "decoder_input_ids": ids}
    if kind == "sound":
        return {"input_features": numbers(torch, 2, 8, 20), "decoder_input_ids": ids}
    if kind == "pair":
        return {"input_ids": ids, "pixel_values": numbers(torch, 2, 3, 30, 30)}
    if kind == "picture":
        return {"pixel_values": numbers(torch, 2, 3, 32, 32)}
    if kind == "wave":
        return {"input_values": numbers(torch, 2, 400)}
    return {"input_ids": ids}


def _transformer(name: str, package: str, cls: str, options: dict[str, Any], kind: str) -> None:
    def build(torch: Any, folder: Path, first: bool) -> Any:
        import importlib

        module = importlib.import_module(f"transformers.models.{package}.modeling_{package}")
        made = getattr(module, cls)
        model = first_values(made(made.config_class(**options)), folder, first)
        return model, lambda m: result_of(m(**arguments(kind, torch)))

    CASES[name] = build


def _diffuser(name: str, module: str, cls: str, config: dict[str, Any], call: Any) -> None:
    def build(torch: Any, folder: Path, first: bool) -> Any:
        import importlib

        made = getattr(importlib.import_module(f"diffusers.models.{module}"), cls)
        model = first_values(made.from_config(config), folder, first)
        given = {
            key: numbers(torch, *value)
            if isinstance(value, tuple)
            else torch.tensor(value)
            if isinstance(value, list)
            else value
            for key, value in call.items()
        }
        return model, lambda m: result_of(m(**given))

    CASES[name] = build


_schedulers()
for name, row in TRANSFORMERS.items():
    _transformer(name, *row)
for name, model_row in DIFFUSERS.items():
    _diffuser(name, *model_row)
for name, size in TORCHVISION.items():
    _vision(name, size)
for name, timm_row in TIMM.items():
    _timm(name, *timm_row)


def run(name: str, torch: Any, folder: Path, first: bool) -> dict[str, np.ndarray]:
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    model, call = CASES[name](torch, folder, first)
    out = call(model)
    found = {"out": out.detach().numpy()}
    if model is not None:
        out.float().square().mean().backward()
        for parameter, p in model.named_parameters():
            if p.grad is not None:
                found[f"grad.{parameter}"] = p.grad.numpy()
    return found


def compare(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> dict[str, Any]:
    assert ours.keys() == theirs.keys(), sorted(ours.keys() ^ theirs.keys())[:5]
    a, b = ours.pop("out"), theirs.pop("out")
    error = np.abs(a.astype(float) - b).max() / (np.abs(b).max() or 1.0)
    apart = sum(np.square(ours[n] - theirs[n], dtype=np.float64).sum() for n in theirs)
    whole = sum(np.square(theirs[n], dtype=np.float64).sum() for n in theirs)
    gradient = float(np.sqrt(apart / (whole or 1.0))) if theirs else 0.0
    return {
        "ok": bool(error <= 1e-4 and gradient <= 1e-3),
        "out": float(f"{error:.2e}"),
        "gradient": float(f"{gradient:.2e}"),
    }


def main(library: str, folder: Path, names: list[str]) -> None:
    first = library == "torch"
    if not first:
        from oneflow import mock_torch

        mock_torch.enable(lazy=True, mock_version="2.6.0")
    import torch

    if first:  # torchvision's compiled part may be of another version; only its names are needed
        ops = torch.library.Library("torchvision", "FRAGMENT")
        for op in ("nms", "qnms"):
            ops.define(f"{op}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    for name in names or list(CASES):
        start = time.process_time()
        report: dict[str, Any] = {"model": name, "ok": True}
        try:
            found = run(name, torch, folder / name, first)
            if first:
                np.savez(folder / name / "values.npz", **found)
            else:
                with np.load(folder / name / "values.npz") as file:
                    report |= compare(found, dict(file))
                shutil.rmtree(folder / name)
        except Exception as error:
            while error.__cause__ is not None:
                error = error.__cause__
            where = traceback.extract_tb(error.__traceback__)
            report |= {
                "ok": False,
                "error": f"{type(error).__name__}: {error}"[:300],
                "at": [
                    f"{'/'.join(f.filename.split('/')[-3:])}:{f.lineno} {f.line}"[:90]
                    for f in where
                ][-4:],
            }
        report["cpu_s"] = round(time.process_time() - start, 1)
        print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
