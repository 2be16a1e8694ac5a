"""Substitutes for names of PyTorch that do not exist here: the ends of error messages."""

from __future__ import annotations

SUBSTITUTES = {
    "distributed.checkpoint": "flow.save writes a checkpoint folder of global tensors on all ranks",
    "distributed.device_mesh": "flow.placement is a grid of ranks",
    "distributed.fsdp": "shard parameters with module.to_global(placement, sbp=flow.sbp.split(0)), "
    "or use enable_zero() of an nn.Graph",
    "distributed.pipelining": "stages of an nn.Graph: module.to(GraphModule).set_stage(number)",
    "distributed.tensor": "a global tensor: tensor.to_global(placement, sbp)",
    "export": "graph.export(file) of an nn.Graph writes a job file",
    "fx": "nn.Graph traces a module; print(graph) shows its ops",
    "_inductor": "nn.Graph compiles a training step or a forward pass",
    "nested": "pad, and mask what is padding",
    "nn.LinearCrossEntropyLoss": "nn.Linear, then nn.CrossEntropyLoss",
    "nn.CrossMapLRN2d": "nn.LocalResponseNorm",
    "quantization": "flow.nn.qat trains with quantized weights",
    "ao.quantization": "flow.nn.qat trains with quantized weights",
    "sparse": "dense tensors, with flow.gather and index_add",
}
"""Name below `torch` -> the substitute of it and of all names below it."""


def substitute(name: str) -> str:
    """Return the substitute of a missing name below `torch` or `oneflow`; "" if nothing does."""
    _, _, rest = name.partition(".")
    while rest:
        if rest in SUBSTITUTES:
            return SUBSTITUTES[rest]
        rest = rest.rpartition(".")[0]
    return ""


def way_out(name: str) -> str:
    """Return a hint for a program that stops at a missing name."""
    return substitute(name) or (
        "mock_torch.enable(lazy=True) lets a file import a name that it does not use"
    )
