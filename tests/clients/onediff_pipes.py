"""Graph files of onediff, and pipelines that its `compile_pipe` compiled, beside PyTorch.

`python -m tests.clients.onediff_pipes FOLDER STEP...` prints a line for each step. `saved` writes
graph files, `loaded` reads them in another process; `pipe` and `saved_pipe`, `loaded_pipe` do so
with a whole pipeline.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from .onediff_models import difference, first, sdxl

SIZE = 16
WORDS = ["<|startoftext|>", "<|endoftext|>", *"abcdefghijklmnopqrstuvwxyz"]


def outputs(folder: Path, name: str, made: torch.Tensor) -> torch.Tensor:
    """The output that the first process saved under a name; it saves it if there is nothing."""
    file = folder / f"{name}.pt"
    if not file.exists():
        torch.save(made, file)
    wanted: torch.Tensor = torch.load(file)
    return wanted


def graph(folder: Path, step: str) -> float:
    """Difference from PyTorch of a UNet whose graph is saved, or loaded, in two ways."""
    from onediff.infer_compiler import OneflowCompileOptions, oneflow_compile

    model, inputs = sdxl()
    given = inputs(SIZE)
    model.eval().requires_grad_(False)
    wanted = first(model(**given))
    compiled = oneflow_compile(model)
    if step == "loaded":
        compiled.load_graph(str(folder / "graph"))
    found = first(compiled(**given))
    if step == "saved":
        compiled.save_graph(str(folder / "graph"))
    options = OneflowCompileOptions()
    options.graph_file = str(folder / "graph_file")
    before = list(folder.glob("graph_file_*"))  # onediff adds digests to the name
    by_option = first(oneflow_compile(model, options=options)(**given))
    after = list(folder.glob("graph_file_*"))
    if len(before) != (step == "loaded") or len(after) != 1:
        raise AssertionError(f"graph files before and after a call: {before}, {after}")
    same = outputs(folder, "unet", found)
    return max(difference(wanted, found), difference(same, found), difference(same, by_option))


def pipeline(folder: Path) -> Any:
    """A small Stable Diffusion of random weights, its tokenizer of letters."""
    from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline
    from diffusers import UNet2DConditionModel as UNet
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

    from .onediff_models import UNET

    words = [*WORDS, *(f"{letter}</w>" for letter in WORDS[2:])]
    (folder / "vocab.json").write_text(json.dumps({word: i for i, word in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = CLIPTokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"))
    tokenizer.model_max_length = 16
    text = CLIPTextConfig(
        vocab_size=len(words),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=16,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )
    blocks = {"down_block_types": ("DownEncoderBlock2D",) * 2}
    blocks["up_block_types"] = ("UpDecoderBlock2D",) * 2
    made = StableDiffusionPipeline(
        vae=AutoencoderKL(block_out_channels=(16, 32), norm_num_groups=4, **blocks),
        text_encoder=CLIPTextModel(text),
        tokenizer=tokenizer,
        unet=UNet(**UNET),
        scheduler=DDIMScheduler(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    made.set_progress_bar_config(disable=True)
    return made


def image(pipe: Any) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    size = 2 * SIZE
    made: torch.Tensor = pipe(
        "a b c",
        height=size,
        width=size,
        num_inference_steps=3,
        generator=generator,
        output_type="pt",
    ).images
    return made


def pipe(folder: Path, step: str) -> float:
    """Difference of an image of a compiled pipeline from PyTorch's."""
    from onediffx import compile_pipe, load_pipe, save_pipe

    whole = pipeline(folder)
    wanted = image(whole)
    compiled = compile_pipe(whole)
    if step == "loaded_pipe":
        load_pipe(compiled, dir=str(folder / "pipe"))
    found = image(compiled)
    if step == "saved_pipe":
        save_pipe(compiled, dir=str(folder / "pipe"))
    same = outputs(folder, "image", found)
    return max(difference(wanted, found), difference(same, found))


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for step in sys.argv[2:]:
        torch.manual_seed(0)
        far = (pipe if step.endswith("pipe") else graph)(folder, step)
        print(json.dumps({"step": step, "differences": [far], "ok": far < 1e-5}), flush=True)
