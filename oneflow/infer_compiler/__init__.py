"""PyTorch's programs compiled by nn.Graph: `torch.compile(model, backend="oneflow")`, and
`compile_from_torch`, for modules that are to be saved with their plans.
"""

from oneflow.infer_compiler.backend import oneflow_backend
from oneflow.infer_compiler.converting import register
from oneflow.infer_compiler.deployed import compile_from_torch

__all__ = ["compile_from_torch", "oneflow_backend", "register"]
