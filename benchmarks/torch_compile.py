"""Models of PyTorch compiled by `torch.compile(backend="oneflow")`, beside themselves without it.

python benchmarks/torch_compile.py [--models a,b] [--rounds 9] [--json FILE]
Forward passes without gradients, and steps (forward and backward). Both sides take turns in one
process; outputs and gradients are compared before anything is timed.
"""

from __future__ import annotations

import argparse
import copy
import json
import platform
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

from oneflow.infer_compiler import oneflow_backend

TOLERANCE = 1e-5


def bert() -> tuple[Any, dict[str, Any]]:
    from transformers import BertConfig, BertModel

    config = BertConfig(hidden_size=256, num_hidden_layers=4, num_attention_heads=4,
                        intermediate_size=1024, vocab_size=1000)  # fmt: skip
    return BertModel(config), {"input_ids": torch.randint(0, 1000, (4, 64))}


def gpt2() -> tuple[Any, dict[str, Any]]:
    from transformers import GPT2Config, GPT2Model

    config = GPT2Config(n_embd=256, n_layer=4, n_head=4, vocab_size=1000, use_cache=False)
    return GPT2Model(config), {"input_ids": torch.randint(0, 1000, (4, 64))}


def llama() -> tuple[Any, dict[str, Any]]:
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(hidden_size=256, num_hidden_layers=4, num_attention_heads=4,
                         intermediate_size=688, vocab_size=1000, use_cache=False)  # fmt: skip
    return LlamaModel(config), {"input_ids": torch.randint(0, 1000, (4, 64))}


def vit() -> tuple[Any, dict[str, Any]]:
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(hidden_size=192, num_hidden_layers=6, num_attention_heads=3,
                       intermediate_size=768, image_size=96, patch_size=16)  # fmt: skip
    return ViTModel(config, add_pooling_layer=False), {"pixel_values": torch.randn(4, 3, 96, 96)}


def torchvision_model(name: str) -> tuple[Any, dict[str, Any]]:
    from tests.clients.worker import stand_in_for_torchvision

    stand_in_for_torchvision(torch)
    import torchvision

    return torchvision.models.get_model(name), {"x": torch.randn(4, 3, 128, 128)}


MODELS: dict[str, Callable[[], tuple[Any, dict[str, Any]]]] = {
    "bert": bert,
    "gpt2": gpt2,
    "llama": llama,
    "vit": vit,
    "resnet18": lambda: torchvision_model("resnet18"),
    "mobilenet_v2": lambda: torchvision_model("mobilenet_v2"),
    "shufflenet_v2_x1_0": lambda: torchvision_model("shufflenet_v2_x1_0"),
}


def output(made: Any) -> torch.Tensor:
    found: torch.Tensor = made if isinstance(made, torch.Tensor) else made[0]
    return found


def step(model: Any, inputs: dict[str, Any]) -> torch.Tensor:
    """A forward and a backward pass; returns the output."""
    model.zero_grad()
    made = output(model(**inputs))
    made.square().mean().backward()
    return made.detach()


def difference(wanted: torch.Tensor, found: torch.Tensor) -> float:
    return float((wanted - found).abs().max() / wanted.abs().max().clamp_min(1e-30))


def whole_gradient(model: Any) -> torch.Tensor:
    parameters = list(model.parameters())  # AOTAutograd gives unused ones zeros
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    return torch.cat([gradient.flatten() for gradient in gradients])


def times(sides: list[Callable[[], Any]], rounds: int) -> list[float]:
    """Median seconds of each side; they take turns."""
    found: list[list[float]] = [[] for _ in sides]
    for _ in range(rounds):
        for side, taken in zip(sides, found, strict=True):
            start = perf_counter()
            side()
            taken.append(perf_counter() - start)
    return [median(taken) for taken in found]


def measure(name: str, rounds: int) -> dict[str, Any]:
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    ours = copy.deepcopy(model)
    compiled = torch.compile(ours, backend=oneflow_backend)
    report: dict[str, Any] = {"model": name}
    model.eval(), ours.eval()
    with torch.no_grad():
        report["forward_difference"] = difference(
            output(model(**inputs)), output(compiled(**inputs))
        )
        sides = [lambda: model(**inputs), lambda: compiled(**inputs)]
        report["forward_ms"] = [1e3 * t for t in times(sides, rounds)]
    model.train(), ours.train()
    made = []
    for one, run in ((model, model), (ours, compiled)):
        torch.manual_seed(1)  # the same dropout
        made.append((step(run, inputs), whole_gradient(one)))
    (wanted, wanted_gradient), (found, gradient) = made
    report["step_difference"] = difference(wanted, found)
    report["gradient_difference"] = difference(wanted_gradient, gradient)
    sides = [lambda: step(model, inputs), lambda: step(compiled, inputs)]
    report["step_ms"] = [1e3 * t for t in times(sides, rounds)]
    worst = max(v for k, v in report.items() if k.endswith("difference"))
    report["ok"] = worst < TOLERANCE
    for kind in ("forward", "step"):
        theirs, own = report[f"{kind}_ms"]
        report[f"{kind}_ratio"] = theirs / own
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    processor = next(
        (x for x in Path("/proc/cpuinfo").read_text().splitlines() if x.startswith("model name")),
        platform.processor(),
    ).partition(": ")[2]
    print(f"{processor}, {torch.get_num_threads()} threads, PyTorch {torch.__version__}")
    print(
        f"{'model':20}{'forward ms':>20}{'ratio':>7}{'step ms':>20}{'ratio':>7}{'difference':>12}"
    )
    reports = []
    for name in options.models.split(","):
        found = measure(name, options.rounds)
        reports.append(found)
        line = f"{name:20}"
        for kind in ("forward", "step"):
            theirs, own = found[f"{kind}_ms"]
            line += f"{theirs:10.2f}{own:10.2f}{found[f'{kind}_ratio']:7.2f}"
        worst = max(v for k, v in found.items() if k.endswith("difference"))
        print(f"{line}{worst:12.1e}{'' if found['ok'] else '  DIFFERS'}", flush=True)
    if options.json:
        options.json.write_text(json.dumps({"processor": processor, "models": reports}, indent=1))
    if not all(found["ok"] for found in reports):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
