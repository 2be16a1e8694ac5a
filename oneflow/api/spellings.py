"""Keywords and positional orders of upstream, where our functions are named after PyTorch.

Both libraries' keywords are taken. Where their positional orders differ, upstream's counts; such
functions are on the page docs/DIFFERENCES.md.
"""

from __future__ import annotations

FIRST = ("input", "x", "inputs", "tensors", "self")
"""Spellings of a function's first parameter: each is taken where it has another of them."""

_OF_X = """
    abs cast cat celu column_stack diag diagonal digamma dstack elu erfc flatten frac gumbel_softmax
    hardshrink hardsigmoid hardswish hardtanh hstack interpolate leaky_relu log_softmax logaddexp
    logsigmoid matrix_norm multinomial norm normalize pad prelu relu6 round rrelu selu softmax
    softplus squeeze stack threshold tril triu unbind upsample vector_norm vstack
"""
OF_X = frozenset(_OF_X.split())
"""Functions whose first parameter has a spelling in upstream that is not ours."""

KEYWORDS: dict[str, str] = {
    "batch_gather": "in=input indices=index",
    "bmm": "a=input b=mat2",
    "convert_oneflow_dtype_to_numpy_dtype": "oneflow_dtype=dtype",
    "copy_": "other=source src=source",
    "cosine_similarity": "x=x1 y=x2",
    "from_dlpack": "ext_tensor=source dlpack=source",
    "from_numpy": "obj=array ndarray=array x=array",
    "gather_nd": "params=input indices=index",
    "gumbel_softmax": "x=logits input=logits",
    "is_tensor": "obj=x",
    "leaky_relu": "alpha=negative_slope",
    "logaddexp": "y=other",
    "normalize": "use_l2_norm_kernel=",
    "pow": "other=exponent",
    "softshrink": "alpha=lambd",
    "threshold": "threshold_val=threshold",
}
"""Name -> "theirs=ours" pairs; nothing behind the sign: accepted, and it changes nothing."""

ORDERS: dict[str, str] = {
    "allclose": "input other atol rtol equal_nan",
    "arange": "start end step dtype",
    "cumprod": "input dim dtype",
    "cumsum": "input dim dtype",
    "empty_like": "input dtype",
    "frombuffer": "buffer dtype count offset requires_grad",
    "full": "size fill_value dtype",
    "full_like": "input fill_value dtype",
    "index_add": "input dim index source alpha",
    "linspace": "start end steps dtype",
    "logspace": "start end steps base dtype",
    "ones_like": "input dtype",
    "repeat_interleave": "input repeats dim output_size",
    "to_global": "input placement sbp grad_sbp check_meta copy",
    "zeros_like": "input dtype",
}
"""Name -> the parameters that may be given by position, in their order."""
