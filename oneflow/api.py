"""The public table: one row for every function and object that users reach by name.

A row names the function's home (the module that defines it), the surfaces on which users find it,
and its counterpart in PyTorch. The namespaces, `dir()`, the type stubs, the reference page and the
comparison with PyTorch are all made from these rows (`oneflow/surfaces.py`, `docs/stubs.py`,
`docs/reference.py`, `tests/parity`); a public name that has no row does not exist.

Surfaces:

    flow      oneflow.f              flow_     oneflow.f_, writes into its first argument
    tensor    Tensor.f               tensor_   Tensor.f_, writes into the tensor
    F         oneflow.nn.functional.f
    linalg    oneflow.linalg.f       special   oneflow.special.f
    nn        oneflow.nn.C           optim     oneflow.optim.C        autograd  oneflow.autograd.f
    _C        oneflow._C.f, the names upstream's own Python code calls

Ways to promote (`promote=`): FLOAT casts integer and bool operands to the default floating-point
dtype before the op runs; INTEGER casts bools to int64; SAME_TYPE brings two operands, of which one
may be a number, to one dtype; KEEP hands the tensor over as it is. A row without `promote` names a
function that sees to its own operands.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

FLOAT: Final = "float"
INTEGER: Final = "integer"
SAME_TYPE: Final = "same_type"
KEEP: Final = "keep"

SAME: Final = "<same name>"
"""The counterpart in PyTorch bears the same name on the same surface."""


@dataclass(frozen=True, slots=True)
class Row:
    """One function or object.

    names: the first is the usual one, the others are synonyms on the same surfaces.
    home: the module that defines it.  own: its name there.
    torch: dotted name below `torch` of the counterpart, SAME, or None if PyTorch has none.
    promote: see the top of this file.
    keywords: spellings of keywords that callers may use besides the function's own ones.
    order: positional order of the arguments where users expect another than the function has.
    """

    names: tuple[str, ...]
    home: str
    own: str
    surfaces: tuple[str, ...]
    torch: str | None = SAME
    promote: str | None = None
    keywords: dict[str, str] = field(default_factory=dict)
    order: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Entry:
    names: str
    surfaces: str
    own: str | None
    torch: str | None
    promote: str | None
    keywords: str
    order: str


def row(
    names: str,
    surfaces: str,
    *,
    own: str | None = None,
    torch: str | None = SAME,
    promote: str | None = None,
    keywords: str = "",
    order: str = "",
) -> _Entry:
    """A row as it is written in the table; `at` completes it.

    names, surfaces, order: separated by blanks.  own: the name in the home; None: the first name.
    keywords: "their_name=own_name" pairs, separated by blanks.
    """
    return _Entry(names, surfaces, own, torch, promote, keywords, order)


def at(home: str, *entries: _Entry) -> tuple[Row, ...]:
    """The rows of one home module, named without `oneflow.`."""
    return tuple(
        Row(
            names=tuple(e.names.split()),
            home=f"oneflow.{home}",
            own=e.own or e.names.split()[0],
            surfaces=tuple(e.surfaces.split()),
            torch=e.torch,
            promote=e.promote,
            keywords=dict(pair.split("=") for pair in e.keywords.split()),
            order=tuple(e.order.split()),
        )
        for e in entries
    )


def classes(home: str, surface: str, names: str, *, unknown: str = "") -> tuple[Row, ...]:
    """One row for each name that `home` defines for a surface.  unknown: those PyTorch lacks."""
    missing = unknown.split()
    return at(home, *(row(n, surface, torch=None if n in missing else SAME) for n in names.split()))


MODULES = (
    "asyncs",
    "autograd",
    "boxing",
    "cluster",
    "comm",
    "cuda",
    "distributed",
    "env",
    "graph",
    "io",
    "jobs",
    "linalg",
    "nn",
    "optim",
    "sbp",
    "special",
    "utils",
    "_C",
)
"""Sub-packages that `oneflow.<name>` finds without an import by the user."""

NN_MODULES = ("functional", "graph", "init", "modules", "parallel", "parameter", "utils")
OPTIM_MODULES = ("lr_scheduler", "swa_utils")
AUTOGRAD_MODULES = ("functional", "function", "graph")

ROWS: tuple[Row, ...] = (
    *at(
        "core.dtype",
        row("dtype", "flow", own="DType"),
        row("bool", "flow", own="bool_"),
        row("uint8", "flow"),
        row("int8 char", "flow", torch="int8"),
        row("int16 short", "flow"),
        row("int32 int", "flow"),
        row("int64 long", "flow"),
        row("float16 half", "flow"),
        row("bfloat16", "flow"),
        row("float32 float", "flow"),
        row("float64 double", "flow"),
        row("complex64 cfloat", "flow"),
        row("complex128 cdouble", "flow"),
    ),
    *at("core.size", row("Size", "flow")),
    *at("core.device", row("device", "flow", own="Device")),
    *at(
        "tensor.layout",
        row("placement", "flow", torch=None),
        row("finfo", "flow"),
        row("iinfo", "flow"),
        row("convert_oneflow_dtype_to_numpy_dtype", "flow", torch=None),
    ),
    *at("tensor.tensor", row("Tensor", "flow"), row("is_tensor", "flow")),
    *at(
        "functional.from_data",
        row("tensor", "flow"),
        row("as_tensor", "flow"),
        row("frombuffer", "flow"),
    ),
    *at("tensor.convert", row("from_numpy", "flow")),
    *at(
        "functional.legacy",
        row("FloatTensor", "flow"),
        row("DoubleTensor", "flow"),
        row("HalfTensor", "flow"),
        row("BFloat16Tensor", "flow"),
        row("CharTensor", "flow"),
        row("ByteTensor", "flow"),
        row("IntTensor", "flow"),
        row("LongTensor", "flow"),
        row("BoolTensor", "flow"),
    ),
    *at("tensor.printing", row("set_printoptions", "flow")),
    *at("io.checkpoint", row("save", "flow"), row("load", "flow")),
    *at(
        "tensor.grad_mode",
        row("no_grad", "flow autograd"),
        row("enable_grad", "flow autograd"),
        row("set_grad_enabled", "flow autograd"),
        row("inference_mode", "flow autograd"),
        row("is_grad_enabled", "flow autograd"),
    ),
    *at(
        "functional.promotion",
        row("get_default_dtype", "flow"),
        row("set_default_dtype", "flow"),
    ),
    *at(
        "functional.random_state",
        row("Generator", "flow"),
        row("default_generator", "flow"),
        row("manual_seed", "flow"),
        row("initial_seed", "flow"),
        row("seed", "flow"),
        row("get_rng_state", "flow"),
        row("set_rng_state", "flow"),
    ),
    *at(
        "functional.creation",
        row("zeros", "flow"),
        row("ones", "flow"),
        row("empty", "flow"),
        row("full", "flow"),
        row("zeros_like", "flow"),
        row("ones_like", "flow"),
        row("empty_like", "flow"),
        row("full_like", "flow"),
        row("arange", "flow"),
        row("rand", "flow"),
        row("randn", "flow"),
        row("rand_like", "flow"),
        row("randn_like", "flow"),
        row("randint", "flow _C"),
        row("randint_like", "flow _C"),
        row("randperm", "flow"),
        row("normal", "flow _C"),
        row("bernoulli", "flow tensor tensor_"),
        row("eye", "flow"),
        row("linspace", "flow"),
        row("logspace", "flow"),
        row("hann_window", "flow"),
        row("new_zeros", "flow tensor"),
        row("new_ones", "flow tensor"),
        row("new_full", "flow tensor"),
        row("new_empty", "flow tensor"),
    ),
    *at(
        "functional.arithmetic",
        row("add", "flow tensor tensor_ _C"),
        row("sub subtract", "flow tensor tensor_ _C"),
        row("mul multiply", "flow tensor tensor_ _C"),
        row("div divide true_divide", "flow tensor tensor_ flow_ _C"),
        row("floor_divide", "flow tensor tensor_"),
        row("remainder", "flow tensor tensor_"),
        row("fmod", "flow tensor tensor_"),
        row("pow", "flow tensor tensor_ _C"),
        row("atan2", "flow tensor"),
        row("eq", "flow tensor tensor_"),
        row("ne not_equal", "flow tensor tensor_"),
        row("lt less", "flow tensor tensor_"),
        row("le less_equal", "flow tensor tensor_"),
        row("gt greater", "flow tensor tensor_ flow_"),
        row("ge greater_equal", "flow tensor tensor_"),
        row("lerp", "flow tensor tensor_ flow_"),
        row("addcmul", "flow tensor tensor_"),
        row("addcdiv", "flow tensor tensor_"),
        row("isclose", "flow tensor"),
    ),
    *at(
        "ops.binary",
        row("maximum", "flow tensor", promote=SAME_TYPE),
        row("minimum", "flow tensor", promote=SAME_TYPE),
        row("bitwise_and", "flow tensor", promote=SAME_TYPE),
        row("bitwise_or", "flow tensor", promote=SAME_TYPE),
        row("bitwise_xor", "flow tensor", promote=SAME_TYPE),
    ),
    *at(
        "ops.compare",
        row("logical_and", "flow tensor", promote=SAME_TYPE),
        row("logical_or", "flow tensor", promote=SAME_TYPE),
        row("logical_xor", "flow tensor", promote=SAME_TYPE),
    ),
    *at(
        "ops.unary",
        row("exp", "flow tensor tensor_", promote=FLOAT),
        row("exp2", "flow tensor special", promote=FLOAT),
        row("expm1", "flow tensor tensor_ special", promote=FLOAT),
        row("log", "flow tensor tensor_", promote=FLOAT),
        row("log1p", "flow tensor special", promote=FLOAT),
        row("log2", "flow tensor", promote=FLOAT),
        row("log10", "flow tensor", promote=FLOAT),
        row("sqrt", "flow tensor tensor_", promote=FLOAT),
        row("rsqrt", "flow tensor tensor_", promote=FLOAT),
        row("reciprocal", "flow tensor tensor_", promote=FLOAT),
        row("sin", "flow tensor tensor_ flow_", promote=FLOAT),
        row("cos", "flow tensor tensor_", promote=FLOAT),
        row("tan", "flow tensor", promote=FLOAT),
        row("asin arcsin", "flow tensor", promote=FLOAT),
        row("acos arccos", "flow tensor", promote=FLOAT),
        row("atan arctan", "flow tensor", promote=FLOAT),
        row("sinh", "flow tensor", promote=FLOAT),
        row("cosh", "flow tensor", promote=FLOAT),
        row("tanh", "flow tensor tensor_ F", promote=FLOAT),
        row("asinh arcsinh", "flow tensor", promote=FLOAT),
        row("acosh arccosh", "flow tensor", promote=FLOAT),
        row("atanh arctanh", "flow tensor", promote=FLOAT),
        row("erf", "flow tensor tensor_ special", promote=FLOAT),
        row("sigmoid", "flow tensor tensor_ F", promote=FLOAT),
        row("neg negative", "flow tensor tensor_", promote=KEEP),
        row("abs", "flow tensor tensor_", promote=KEEP),
        row("sign", "flow tensor", promote=KEEP),
        row("square", "flow tensor tensor_", promote=INTEGER),
        row("floor", "flow tensor tensor_ flow_", promote=KEEP),
        row("ceil", "flow tensor tensor_ flow_", promote=KEEP),
        row("trunc", "flow tensor tensor_", promote=KEEP),
        row("bitwise_not", "flow tensor", promote=KEEP),
        row("logical_not", "flow tensor tensor_", promote=KEEP),
        row("isnan", "flow tensor", promote=KEEP),
        row("isinf", "flow tensor", promote=KEEP),
        row("isfinite", "flow tensor", promote=KEEP),
    ),
    *at(
        "functional.elementwise",
        row("erfc", "flow tensor special"),
        row("frac", "flow tensor tensor_ flow_"),
        row("round", "flow tensor tensor_ flow_ special"),
        row("logaddexp", "flow tensor"),
        row("cast", "flow tensor _C", torch=None),
        row("clamp clip", "flow tensor tensor_ flow_"),
        row("clamp_min", "flow tensor tensor_ flow_"),
        row("clamp_max", "flow tensor tensor_ flow_"),
        row("masked_fill", "flow tensor tensor_ flow_"),
        row("clone", "flow tensor _C"),
        row("square_relu", "flow F _C", torch=None),
        row("rsub", "flow"),
        row("logit", "flow tensor"),
        row("nan_to_num", "flow tensor"),
        row("signbit", "tensor"),
    ),
    *at(
        "functional.reduction",
        row("trace", "flow tensor"),
        row("sum", "flow tensor"),
        row("mean", "flow tensor"),
        row("prod", "flow tensor"),
        row("nansum", "flow tensor"),
        row("amax", "flow tensor"),
        row("amin", "flow tensor"),
        row("max", "flow tensor", keywords="axis=dim keepdims=keepdim"),
        row("min", "flow tensor", keywords="axis=dim keepdims=keepdim"),
        row("argmax", "flow tensor"),
        row("argmin", "flow tensor"),
        row("any", "flow tensor"),
        row("all", "flow tensor"),
        row("var", "flow tensor"),
        row("std", "flow tensor"),
        row("logsumexp", "flow tensor special"),
        row("norm", "flow tensor"),
        row("cumsum", "flow tensor tensor_"),
        row("cumprod", "flow tensor tensor_"),
        row("equal", "flow tensor"),
        row("allclose", "flow tensor"),
        row("dist", "flow"),
        row("reduce_sum_like", "_C", torch=None),
    ),
    *at(
        "functional.shaping",
        row("reshape", "flow tensor _C"),
        row("view", "flow tensor"),
        row("flatten", "flow tensor _C"),
        row("unflatten", "flow tensor"),
        row("permute", "flow tensor"),
        row("transpose", "flow tensor _C"),
        row("swapaxes", "flow tensor"),
        row("swapdims", "flow tensor"),
        row("t", "flow tensor"),
        row("movedim", "flow tensor"),
        row("expand", "flow tensor _C"),
        row("broadcast_to", "flow tensor"),
        row("broadcast_like", "flow _C", torch=None),
        row("broadcast_shapes", "flow"),
        row("broadcast_tensors", "flow"),
        row("squeeze", "flow tensor"),
        row("unsqueeze", "flow tensor"),
        row("flip", "flow tensor"),
        row("roll", "flow tensor"),
        row("tril", "flow tensor tensor_"),
        row("triu", "flow tensor tensor_"),
        row("diagonal", "flow tensor"),
        row("diag", "flow tensor"),
        row("diag_embed", "flow"),
        row("tile", "flow tensor"),
        row("repeat", "flow tensor"),
        row("repeat_interleave", "flow tensor"),
        row("meshgrid", "flow"),
        row("atleast_1d", "flow"),
        row("atleast_2d", "flow"),
        row("atleast_3d", "flow"),
        row("view_as", "tensor"),
        row("reshape_as", "tensor"),
        row("reshape_like", "_C", own="reshape_as", torch=None),
        row("expand_as", "tensor"),
    ),
    *at(
        "functional.joining",
        row("cat concat", "flow _C"),
        row("stack", "flow"),
        row("split", "flow tensor"),
        row("narrow", "flow tensor"),
        row("chunk", "flow tensor"),
        row("tensor_split", "flow tensor"),
        row("unbind", "flow tensor"),
        row("select", "flow tensor"),
        row("hstack", "flow"),
        row("vstack", "flow"),
        row("dstack", "flow"),
        row("column_stack", "flow"),
        row("row_stack", "flow"),
        row("hsplit", "flow tensor"),
        row("vsplit", "flow tensor"),
    ),
    *at(
        "functional.searching",
        row("gather", "flow tensor"),
        row("batch_gather", "flow", torch=None),
        row("gather_nd", "flow", torch=None),
        row("index_select", "flow tensor"),
        row("scatter", "flow tensor tensor_"),
        row("scatter_add", "flow tensor tensor_"),
        row("index_add", "flow tensor tensor_ flow_"),
        row("sort", "flow tensor"),
        row("argsort", "flow tensor"),
        row("arg_sort", "_C", own="argsort", torch=None),
        row("topk", "flow tensor"),
        row("kthvalue", "flow tensor"),
        row("median", "flow tensor"),
        row("nonzero", "flow tensor"),
        row("where", "flow _C"),
        row("argwhere", "flow tensor"),
        row("masked_select", "flow tensor"),
        row("unique", "flow tensor"),
        row("bincount", "flow tensor"),
        row("searchsorted", "flow"),
        row("multinomial", "flow tensor"),
        row("in_top_k", "flow tensor", torch=None),
        row("take_along_dim", "flow tensor"),
        row("mode", "flow tensor"),
        row("quantile", "flow tensor"),
        row("one_hot", "F _C"),
    ),
    *at(
        "functional.linear_algebra",
        row("matmul", "flow tensor _C linalg"),
        row("mm", "flow tensor"),
        row("bmm", "flow tensor"),
        row("mv", "flow tensor"),
        row("dot", "flow tensor"),
        row("outer", "flow tensor"),
        row("vector_outer", "linalg", own="outer", torch=None),
        row("addmm", "flow tensor"),
        row("baddbmm", "flow tensor"),
        row("tensordot", "flow"),
        row("cross", "flow tensor linalg"),
        row("einsum", "flow"),
    ),
    *at(
        "functional.nn_activation",
        row("relu", "flow tensor tensor_ flow_ F _C"),
        row("gelu", "flow tensor F _C"),
        row("quick_gelu", "flow F _C", torch=None),
        row("silu", "flow tensor F _C"),
        row("mish", "flow tensor F"),
        row("selu", "flow tensor F"),
        row("softmax", "flow tensor F _C special"),
        row("log_softmax", "flow tensor F special"),
        row("softplus", "flow tensor F"),
        row("softsign", "flow tensor F"),
        row("softshrink", "flow F"),
        row("threshold", "flow F"),
        row("dropout", "flow F _C"),
        row("hardtanh", "tensor F"),
        row("celu", "F"),
        row("dropout1d", "F"),
        row("dropout2d", "F"),
        row("dropout3d", "F"),
        row("elu", "F"),
        row("fast_gelu", "F _C", torch=None),
        row("glu", "F"),
        row("gumbel_softmax", "F"),
        row("hardshrink", "F"),
        row("hardsigmoid", "F"),
        row("hardswish", "F"),
        row("leaky_relu", "F"),
        row("logsigmoid", "F"),
        row("prelu", "F", keywords="alpha=weight"),
        row("relu6", "F"),
        row("rrelu", "F _C"),
        row("softmin", "F"),
    ),
    *at(
        "functional.nn_windows",
        row("adaptive_avg_pool1d", "flow F"),
        row("adaptive_avg_pool2d", "flow F"),
        row("adaptive_avg_pool3d", "flow F"),
        row("avg_pool1d", "F"),
        row("avg_pool2d", "F"),
        row("avg_pool3d", "F"),
        row("conv1d", "F"),
        row("conv2d", "F"),
        row("conv3d", "F"),
        row("conv_transpose1d", "F"),
        row("conv_transpose2d", "F"),
        row("conv_transpose3d", "F"),
        row("max_pool1d", "F"),
        row("max_pool2d", "F"),
        row("max_pool3d", "F"),
    ),
    *at(
        "functional.nn_layers",
        row("pad", "flow F _C"),
        row("batch_norm", "F"),
        row("cosine_similarity", "F"),
        row("embedding", "F"),
        row("group_norm", "F _C"),
        row("instance_norm", "F"),
        row("layer_norm", "F"),
        row("linear", "F"),
        row("normalize", "F _C"),
        row("pairwise_distance", "F"),
        row("pixel_shuffle", "F _C"),
        row("rms_norm", "F"),
    ),
    *at("functional.nn_resizing", row("interpolate", "F"), row("upsample", "F")),
    *at(
        "functional.extras",
        row("numel", "flow"),
        row("is_nonzero", "flow"),
        row("is_floating_point", "flow"),
        row("contiguous", "flow", torch="Tensor.contiguous"),
        row("slice", "flow", torch=None),
        row("slice_update", "flow", torch=None),
        row("set_default_tensor_type", "flow"),
        row("set_num_threads", "flow"),
        row("use_deterministic_algorithms", "flow"),
        row("to_global", "flow", torch=None),
        row("to_local", "flow", torch=None),
        row("local_to_global", "flow", torch=None),
        row("global_to_global", "flow", torch=None),
        row("from_dlpack", "flow"),
        row("to_dlpack", "flow"),
    ),
    *at(
        "functional.moving",
        row("to", "tensor"),
        row("cpu", "tensor"),
        row("cuda", "tensor"),
        row("type_as", "tensor"),
        row("get_device", "tensor"),
    ),
    *at(
        "functional.nn_attention",
        row("scaled_dot_product_attention", "F"),
    ),
    *at(
        "functional.nn_loss",
        row("binary_cross_entropy", "F"),
        row("binary_cross_entropy_with_logits", "F"),
        row("cross_entropy", "F _C"),
        row("kl_div", "F"),
        row("l1_loss", "F"),
        row("margin_ranking_loss", "F"),
        row("mse_loss", "F _C"),
        row("nll_loss", "F"),
        row("smooth_l1_loss", "F _C"),
        row("softmax_cross_entropy", "F _C", torch=None),
        row("sparse_softmax_cross_entropy", "F _C", torch=None),
        row("triplet_margin_loss", "F _C"),
    ),
    *at(
        "functional.upstream",
        row("bias_add", "_C", torch=None),
        row("fused_bias_add_dropout", "_C", torch=None),
        row("fused_bias_add_gelu", "_C", torch=None),
        row("fused_fast_gelu_mul", "_C", torch=None),
        row("fused_scale_mask_softmax", "_C", torch=None),
        row("fused_scale_mask_softmax_dropout", "_C", torch=None),
        row("fused_scale_tril_softmax_mask_scale", "_C", torch=None),
        row("gather", "_C"),
        row("gelu_with_approximate", "_C", torch=None),
        row("global_arange", "_C", torch=None),
        row("host_scalar_add_by_tensor", "_C", torch=None),
        row("identity amp_white_identity amp_black_identity", "_C", torch=None),
        row("layer_norm", "_C"),
        row("layer_norm_affine", "_C", torch=None),
        row("rms_norm", "_C"),
        row("slice", "_C", torch=None),
        row("slice_update", "_C", torch=None),
        row("sparse_cross_entropy", "_C", torch=None),
        row("split_like", "_C", torch=None),
        row("trunc_divide", "_C", torch=None),
    ),
    *at(
        "functional.initial",
        row("kaiming_normal_", "tensor", torch=None),
        row("kaiming_uniform_", "tensor", torch=None),
        row("orthogonal_", "tensor", torch=None),
        row("trunc_normal_", "tensor", torch=None),
        row("xavier_normal_", "tensor", torch=None),
        row("xavier_uniform_", "tensor", torch=None),
    ),
    *at(
        "functional.methods",
        row("exponential_", "_C tensor"),
        row("where", "tensor", own="where_self"),
        row("squeeze_", "tensor"),
        row("unsqueeze_", "tensor"),
        row("is_offloaded", "tensor", torch=None),
        row("uniform_", "tensor"),
        row("normal_", "tensor"),
        row("random_", "tensor"),
        row("to_global", "tensor", torch=None),
        row("to_local", "tensor", torch=None),
        row("local_to_global", "tensor", torch=None),
        row("global_to_global", "tensor", torch=None),
        row("check_meta_consistency", "tensor", torch=None),
        row("global_id", "tensor", torch=None),
        row("to_consistent", "tensor", torch=None),
        row("pin_memory", "tensor"),
        row("is_pinned", "tensor"),
        row("new", "tensor"),
        row("new_tensor", "tensor"),
        row("copy_", "tensor"),
        row("fill_", "tensor"),
        row("zero_", "flow tensor"),
        row("size", "tensor"),
        row("stride", "tensor"),
        row("is_contiguous", "tensor"),
        row("contiguous", "tensor"),
        row("data_ptr", "tensor"),
        row("storage_offset", "tensor"),
        row("is_view", "tensor", torch=None),
        row("dim ndimension", "tensor"),
        row("numel nelement", "tensor"),
        row("element_size", "tensor"),
        row("is_floating_point", "tensor"),
        row("float", "tensor", own="to_float32"),
        row("double", "tensor", own="to_float64"),
        row("half", "tensor", own="to_float16"),
        row("bfloat16", "tensor", own="to_bfloat16"),
        row("int", "tensor", own="to_int32"),
        row("long", "tensor", own="to_int64"),
        row("short", "tensor", own="to_int16"),
        row("byte", "tensor", own="to_uint8"),
        row("char", "tensor", own="to_int8"),
        row("bool", "tensor", own="to_bool"),
    ),
    *at(
        "functional.linalg",
        row("matrix_norm", "linalg"),
        row("norm", "linalg"),
        row("vector_norm", "linalg"),
    ),
    *classes(
        "nn.module",
        "nn",
        "Module",
    ),
    *classes(
        "nn.modules.activation",
        "nn",
        "CELU ELU GELU GLU SELU Hardshrink Hardsigmoid Hardswish Hardtanh LeakyReLU LogSigmoid "
        "LogSoftmax Mish PReLU QuickGELU ReLU ReLU6 RReLU Sigmoid SiLU Softmax Softplus "
        "Softshrink Softsign SquareReLU Tanh Threshold",
        unknown="QuickGELU SquareReLU",
    ),
    *classes(
        "nn.modules.containers",
        "nn",
        "ModuleDict ModuleList ParameterDict ParameterList Sequential",
    ),
    *classes(
        "nn.modules.conv",
        "nn",
        "Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d",
    ),
    *classes(
        "nn.modules.distance",
        "nn",
        "CosineSimilarity PairwiseDistance",
    ),
    *classes(
        "nn.modules.dropout",
        "nn",
        "Dropout Dropout1d Dropout2d Dropout3d",
    ),
    *classes(
        "nn.modules.linear",
        "nn",
        "Identity Linear",
    ),
    *classes(
        "nn.modules.loss",
        "nn",
        "BCELoss BCEWithLogitsLoss CrossEntropyLoss KLDivLoss L1Loss MarginRankingLoss MSELoss "
        "NLLLoss SmoothL1Loss TripletMarginLoss",
    ),
    *classes(
        "nn.modules.normalization",
        "nn",
        "BatchNorm1d BatchNorm2d BatchNorm3d FusedBatchNorm1d FusedBatchNorm2d FusedBatchNorm3d "
        "GroupNorm InstanceNorm1d InstanceNorm2d InstanceNorm3d LayerNorm RMSLayerNorm RMSNorm",
        unknown="FusedBatchNorm1d FusedBatchNorm2d FusedBatchNorm3d RMSLayerNorm",
    ),
    *classes(
        "nn.modules.padding",
        "nn",
        "ConstantPad1d ConstantPad2d ConstantPad3d ReflectionPad1d ReflectionPad2d "
        "ReplicationPad1d ReplicationPad2d ZeroPad2d",
    ),
    *classes(
        "nn.modules.pooling",
        "nn",
        "AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AvgPool1d AvgPool2d AvgPool3d "
        "MaxPool1d MaxPool2d MaxPool3d",
    ),
    *classes(
        "nn.modules.rnn",
        "nn",
        "GRU LSTM RNN GRUCell LSTMCell RNNBase RNNCell RNNCellBase",
    ),
    *classes(
        "nn.modules.shape",
        "nn",
        "Flatten",
    ),
    *classes(
        "nn.modules.sparse",
        "nn",
        "Embedding",
    ),
    *classes(
        "nn.modules.vision",
        "nn",
        "PixelShuffle Upsample UpsamplingBilinear2d UpsamplingNearest2d",
    ),
    *classes(
        "nn.parameter",
        "nn",
        "Parameter",
    ),
    *classes("graph.graph", "nn", "Graph", unknown="Graph"),
    *classes("optim.adam", "optim", "Adam AdamW LAMB", unknown="LAMB"),
    *classes("optim.adaptive", "optim", "Adadelta Adagrad RMSprop"),
    *classes("optim.optimizer", "optim", "Optimizer ParamGroup", unknown="ParamGroup"),
    *classes("optim.sgd", "optim", "SGD"),
    *classes("autograd.api", "autograd", "backward grad"),
    *classes(
        "autograd.function",
        "autograd",
        "Function FunctionCtx once_differentiable",
        unknown="FunctionCtx once_differentiable",
    ),
)
