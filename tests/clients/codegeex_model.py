"""CodeGeeX's model and its loop over tokens, unmodified, beside its own version for PyTorch.

    python -m tests.clients.codegeex_model CHECKOUT     # of THUDM/CodeGeeX

A model of 3 layers of 64 with random weights, in half floats as the program has it: logits of a
text, of the next token from a cache of keys and values, and 24 tokens chosen greedily; then the
same with weights of 8 bits, whose logits must be near. The program names CUDA devices in its
source; on a CPU `.cuda()` stays where it is, in both libraries.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch

import oneflow as flow

SIZES = {
    "hidden_size": 64,
    "num_layers": 3,
    "num_attention_heads": 4,
    "padded_vocab_size": 160,
    "max_position_embeddings": 48,
}
PROMPT = [5, 17, 99, 3, 42, 8]
OF_CUDA = {  # modules that a GPU's quantization needs, and names that are imported from them
    "codegeex.kernels": ("extract_weight_to_half",),
    "codegeex.megatron": (),
    "codegeex.megatron.mpu": (),
    "codegeex.megatron.mpu.layers": ("RowParallelLinear", "ColumnParallelLinear"),
    "codegeex.megatron.mpu.mappings": (
        "copy_to_tensor_model_parallel_region",
        "gather_from_tensor_model_parallel_region",
        "reduce_from_tensor_model_parallel_region",
        "scatter_to_tensor_model_parallel_region",
    ),
}


def main(checkout: str) -> None:
    sys.path.insert(0, checkout)
    for name, inside in OF_CUDA.items():
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(dict.fromkeys(inside, object))
    found = {}
    rng = np.random.default_rng(0)
    weights: dict[str, Any] = {}
    for library, room in ((torch, "torch"), (flow, "oneflow")):
        on_cpu(library)
        model: Any = importlib.import_module(f"codegeex.{room}").CodeGeeXModel(**SIZES)
        for name, p in model.named_parameters():
            if name not in weights:
                weights[name] = rng.normal(0, 0.05, tuple(p.shape)).astype(np.float32)
        with library.no_grad():
            for name, p in model.named_parameters():
                p.copy_(library.tensor(weights[name]))
        loop = importlib.import_module(f"codegeex.{room}.inference")
        found[room] = run(library, loop, model.eval().half())
    quantized = importlib.import_module("codegeex.quantization").quantize_oneflow(model, 8)
    ours, theirs = found["oneflow"], found["torch"]
    report = {
        "logits": max(_difference(ours[name], theirs[name]) for name in ("whole", "next")),
        "tokens": [theirs["tokens"], ours["tokens"]],
        "quantized": _difference(logits(flow, loop, quantized)[0], theirs["whole"]),
    }
    print(json.dumps(report))


def _difference(x: Any, wanted: Any) -> float:
    """Return the largest, relative to the largest number that is wanted."""
    return float(np.abs(x - wanted).max() / np.abs(wanted).max())


def on_cpu(library: Any) -> None:
    """Let the names of CUDA devices mean the CPU."""
    library.Tensor.cuda = lambda self, *_, **__: self
    library.nn.Module.cuda = lambda self, *_, **__: self
    library.cuda.LongTensor = library.LongTensor
    library.cuda.current_device = lambda: "cpu"


def run(library: Any, loop: Any, model: Any) -> dict[str, Any]:
    whole, following = logits(library, loop, model)
    tokenizer = SimpleNamespace(eos_token_id=0)
    stream = loop.get_token_stream(
        model, tokenizer, 48, 24, [list(PROMPT)], micro_batch_size=1, greedy=True
    )
    tokens: list[int] = []
    with contextlib.suppress(StopIteration):
        for made, _ in stream:
            tokens = made[0].numpy().tolist()
    return {"whole": whole, "next": following, "tokens": tokens}


def logits(library: Any, loop: Any, model: Any) -> list[Any]:
    """Return those of the prompt, and those of a token behind it, with the kept keys and values."""
    text = library.tensor([PROMPT + [0] * (48 - len(PROMPT))])
    tokens, mask, places = loop.get_batch(text, 1, 0)
    n = len(PROMPT)
    with library.no_grad():
        whole, past = model(
            tokens[:, :n], places[:, :n], mask, get_key_value=True, context_length=n
        )
        one = library.tensor([[7]])
        more, _ = model(
            one,
            places[:, n : n + 1],
            mask,
            layer_past=past,
            get_key_value=True,
            context_length=n + 1,
        )
    return [x.float().numpy() for x in (whole, more)]


if __name__ == "__main__":
    main(sys.argv[1])
