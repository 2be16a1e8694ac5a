"""OneFlow: a distributed deep-learning runtime built of actor services.

`import oneflow as flow`. Names are found where they are first used, so the import itself is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_DTYPES = {
    "bool": "bool_", "uint8": "uint8", "int8": "int8", "int16": "int16", "int32": "int32", "int64": "int64",
    "float16": "float16", "bfloat16": "bfloat16", "float32": "float32", "float64": "float64", "complex64": "complex64",
    "complex128": "complex128", "int": "int32", "long": "int64", "short": "int16", "half": "float16", "float": "float32",
    "double": "float64", "char": "int8", "cfloat": "complex64", "cdouble": "complex128",
}  # fmt: skip

# module -> names it gives to users, as they are called there; `a=b` gives b under the name a
_EXPORTS = {
    "oneflow.core.dtype": "dtype=DType " + " ".join(f"{a}={b}" for a, b in _DTYPES.items()),
    "oneflow.core.size": "Size",
    "oneflow.core.device": "device=Device",
    "oneflow.tensor.tensor": "Tensor is_tensor",
    "oneflow.tensor.creation": "tensor as_tensor frombuffer",
    "oneflow.tensor.convert": "from_numpy",
    "oneflow.tensor.printing": "set_printoptions",
    "oneflow.autograd.grad_mode": "no_grad enable_grad set_grad_enabled inference_mode is_grad_enabled",
    "oneflow.functional.promotion": "get_default_dtype set_default_dtype",
    "oneflow.functional.random_state": (
        "Generator default_generator manual_seed initial_seed seed get_rng_state set_rng_state"
    ),
    "oneflow.functional.creation": (
        "zeros ones empty full zeros_like ones_like empty_like full_like arange rand randn"
    ),
    "oneflow.functional.arithmetic": (
        "add sub mul div floor_divide remainder fmod pow maximum minimum atan2 eq ne lt le gt ge logical_and logical_or "
        "logical_xor bitwise_and bitwise_or bitwise_xor lerp addcmul addcdiv isclose negative=neg greater=gt "
        "greater_equal=ge not_equal=ne less=lt less_equal=le true_divide=div"
    ).replace("negative=neg ", ""),
    "oneflow.functional.elementwise": (
        "exp exp2 expm1 log log1p log2 log10 sqrt rsqrt reciprocal sin cos tan asin acos atan sinh cosh tanh asinh acosh "
        "atanh erf erfc sigmoid neg negative=neg abs sign square floor ceil round trunc frac bitwise_not logical_not "
        "isnan isinf isfinite logaddexp cast clamp clip clamp_min clamp_max where masked_fill clone square_relu rsub "
        "arccos=acos arccosh=acosh arcsin=asin arcsinh=asinh arctan=atan arctanh=atanh logit nan_to_num"
    ),
}
_MODULES = ("autograd", "functional", "nn", "optim", "utils", "distributed", "graph", "io")
