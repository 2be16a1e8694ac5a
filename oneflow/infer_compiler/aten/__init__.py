"""PyTorch's operators (aten) as calls of ours: the table, filled."""

from oneflow.infer_compiler.aten import activations, layers, norms, shapes
from oneflow.infer_compiler.aten.layers import attention_alone
from oneflow.infer_compiler.aten.table import CALLS, call_of

__all__ = ["CALLS", "activations", "attention_alone", "call_of", "layers", "norms", "shapes"]
