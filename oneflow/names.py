"""What `oneflow.<name>` is: a module and the names it gives to users; `a=b` offers b of that module
as a.
"""

from __future__ import annotations

DTYPES = (
    "bool=bool_ uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex64 "
    "complex128 int=int32 long=int64 "
    "short=int16 half=float16 float=float32 double=float64 char=int8 cfloat=complex64 "
    "cdouble=complex128"
)

EXPORTS = {
    "oneflow.core.dtype": f"dtype=DType {DTYPES}",
    "oneflow.core.size": "Size",
    "oneflow.core.device": "device=Device",
    "oneflow.tensor.layout": "placement finfo iinfo convert_oneflow_dtype_to_numpy_dtype",
    "oneflow.tensor.tensor": "Tensor is_tensor",
    "oneflow.tensor.creation": "as_tensor frombuffer",
    "oneflow.tensor.convert": "from_numpy",
    "oneflow.tensor.legacy": (
        "FloatTensor DoubleTensor HalfTensor BFloat16Tensor CharTensor ByteTensor IntTensor "
        "LongTensor BoolTensor"
    ),
    "oneflow.tensor.printing": "set_printoptions",
    "oneflow.io.checkpoint": "save load",
    "oneflow.autograd.grad_mode": (
        "no_grad enable_grad set_grad_enabled inference_mode is_grad_enabled"
    ),
    "oneflow.functional.promotion": "get_default_dtype set_default_dtype",
    "oneflow.functional.random_state": (
        "Generator default_generator manual_seed initial_seed seed get_rng_state set_rng_state"
    ),
    "oneflow.functional.creation": (
        "zeros ones empty full zeros_like ones_like empty_like full_like arange rand randn "
        "rand_like "
        "randn_like randint randint_like randperm normal bernoulli eye linspace logspace "
        "hann_window new_zeros new_ones new_full new_empty"
    ),
    "oneflow.functional.arithmetic": (
        "add sub mul div floor_divide remainder fmod pow maximum minimum atan2 eq ne lt le gt ge "
        "logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor lerp addcmul "
        "addcdiv "
        "isclose greater=gt greater_equal=ge not_equal=ne less=lt less_equal=le true_divide=div"
    ),
    "oneflow.functional.elementwise": (
        "exp exp2 expm1 log log1p log2 log10 sqrt rsqrt reciprocal sin cos tan asin acos atan sinh "
        "cosh tanh asinh acosh atanh erf erfc sigmoid neg negative=neg abs sign square floor ceil "
        "round trunc frac bitwise_not logical_not isnan isinf isfinite logaddexp cast clamp clip "
        "clamp_min clamp_max where masked_fill clone square_relu rsub arccos=acos arccosh=acosh "
        "arcsin=asin arcsinh=asinh arctan=atan arctanh=atanh logit nan_to_num"
    ),
    "oneflow.functional.reduction": (
        "sum mean prod nansum amax amin max min argmax argmin any all var std logsumexp norm "
        "cumsum "
        "cumprod equal allclose dist"
    ),
    "oneflow.functional.shaping": (
        "reshape view flatten unflatten permute transpose swapaxes swapdims t movedim expand "
        "broadcast_to broadcast_like broadcast_shapes broadcast_tensors squeeze unsqueeze flip "
        "roll "
        "tril triu diagonal diag diag_embed trace tile repeat repeat_interleave meshgrid "
        "atleast_1d "
        "atleast_2d atleast_3d"
    ),
    "oneflow.functional.joining": (
        "cat concat stack split narrow chunk tensor_split unbind select hstack vstack dstack "
        "column_stack row_stack hsplit vsplit"
    ),
    "oneflow.functional.searching": (
        "gather batch_gather gather_nd index_select scatter scatter_add index_add sort argsort "
        "topk "
        "kthvalue median nonzero argwhere masked_select unique bincount searchsorted multinomial "
        "in_top_k take_along_dim mode quantile"
    ),
    "oneflow.functional.linear_algebra": (
        "matmul mm bmm mv dot outer addmm baddbmm tensordot cross einsum"
    ),
    "oneflow.functional.nn_activation": (
        "relu gelu quick_gelu silu mish selu softmax log_softmax softplus softsign softshrink "
        "threshold dropout"
    ),
    "oneflow.functional.nn_layers": (
        "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d pad"
    ),
    "oneflow.functional.in_place": (
        "ceil_ clamp_ clamp_max_ clamp_min_ clip_ div_ floor_ frac_ gt_ index_add_ lerp_ "
        "masked_fill_ normal_ relu_ round_ sin_ zero_"
    ),
    "oneflow.functional.extras": (
        "numel is_nonzero is_floating_point contiguous slice slice_update set_default_tensor_type "
        "set_num_threads use_deterministic_algorithms to_global to_local local_to_global "
        "global_to_global from_dlpack to_dlpack"
    ),
}

# Sub-packages that are found without being imported by the user.
MODULES = (
    "amp",
    "asyncs",
    "autograd",
    "backends",
    "boxing",
    "cluster",
    "comm",
    "cuda",
    "distributed",
    "distributions",
    "env",
    "fft",
    "functional",
    "graph",
    "hub",
    "io",
    "jobs",
    "linalg",
    "nn",
    "ops",
    "optim",
    "sbp",
    "special",
    "utils",
    "_C",
)


def table() -> dict[str, tuple[str, str]]:
    """name -> (module, name there)."""
    found = {}
    for module, names in EXPORTS.items():
        for entry in names.split():
            public, _, own = entry.partition("=")
            found[public] = (module, own or public)
    return found
