"""Functions under the names that upstream's own Python code calls."""

from oneflow.api.row import Row, at, row

ROWS: tuple[Row, ...] = (
    *at(
        "functional.upstream",
        row("bias_add", "_C", torch=None),
        row("depend", "F", torch=None),
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
)
