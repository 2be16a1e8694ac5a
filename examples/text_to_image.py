"""Images from a text by a Stable Diffusion pipeline whose weights lie in a folder.

    pip install 'oneflow-actors[images]'
    python examples/text_to_image.py FOLDER "a fox in the snow" [--image fox.png] [--steps 30]
                                     [--graphs FOLDER] [--library oneflow|pytorch]

The folder is one that diffusers saves (`save_pretrained`), of Stable Diffusion 1, 2 or XL; nothing
is downloaded. diffusers runs the loop over steps; onediff compiles the models in it to graphs of
this runtime. With --graphs they are kept in a folder, and found there by the next process.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="a pipeline as diffusers saves it")
    parser.add_argument("text")
    parser.add_argument("--image", type=Path, default=Path("image.png"), help="the file to write")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--size", type=int, help="pixels of a side (default: the model's)")
    parser.add_argument(
        "--guidance", type=float, default=7.5, help="how closely to keep to the text"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--count", type=int, default=1, help="how often to make it; times are shown"
    )
    parser.add_argument("--graphs", type=Path, help="a folder that keeps compiled graphs")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--library", choices=("oneflow", "pytorch"), default="oneflow")
    args = parser.parse_args()
    if not (args.folder / "model_index.json").is_file():
        parser.error(f"{args.folder} has no model_index.json: it is no folder of a pipeline")

    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch
    from diffusers import DiffusionPipeline

    pipe = DiffusionPipeline.from_pretrained(args.folder).to(args.device)
    if args.library == "oneflow":
        pipe = compiled(pipe, args.graphs)
    for _ in range(args.count):
        start = time.perf_counter()
        image = pipe(
            args.text,
            height=args.size,
            width=args.size,
            num_inference_steps=args.steps,
            guidance_scale=args.guidance,
            generator=torch.Generator().manual_seed(args.seed),
        ).images[0]
        print(f"{args.steps} steps in {time.perf_counter() - start:.2f} s")
    image.save(args.image)
    print(f"{args.image}: {image.width} x {image.height}")
    if args.library == "oneflow" and args.graphs:
        keep(pipe, args.graphs)


def compiled(pipe: Any, graphs: Path | None) -> Any:
    """The pipeline with its models as graphs; those of an earlier process, if a folder has them."""
    from onediffx import compile_pipe, load_pipe

    pipe = compile_pipe(pipe)
    if graphs and graphs.is_dir():
        load_pipe(pipe, dir=str(graphs))
    return pipe


def keep(pipe: Any, graphs: Path) -> None:
    """Save the graphs of the pipeline's models."""
    from onediffx import save_pipe

    save_pipe(pipe, dir=str(graphs))


if __name__ == "__main__":
    main()
