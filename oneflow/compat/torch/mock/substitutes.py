"""Substitutes for names of PyTorch that do not exist here: the ends of error messages."""

from __future__ import annotations

SUBSTITUTES = {
    "distributed.rpc": "comm.send_object and recv_object, or a cluster that takes jobs",
    "export": "graph.export(file) of an nn.Graph writes a job file",
    "fx": "nn.Graph traces a module; print(graph) shows its ops",
    "_inductor": "nn.Graph compiles a training step or a forward pass",
    "nested": "pad, and mask what is padding",
    "nn.LinearCrossEntropyLoss": "nn.Linear, then nn.CrossEntropyLoss",
    "nn.CrossMapLRN2d": "nn.LocalResponseNorm",
    "quantization": "flow.nn.quantized rounds weights, flow.nn.qat trains with rounded ones",
    "ao.quantization": "flow.nn.quantized rounds weights, flow.nn.qat trains with rounded ones",
    "sparse": "COO, CSR and CSC tensors with products, sums and softmax; to_dense() for others",
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
        "mock_torch.enable(lazy=True), or `eval $(oneflow-mock-torch --lazy)` in the shell, lets a "
        "file import a name that it does not use"
    )
