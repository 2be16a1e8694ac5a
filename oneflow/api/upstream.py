"""Functions under the names that upstream's own Python code calls."""

from oneflow.api.row import Row, at, row


def _upstream_only(home: str, names: str) -> tuple[Row, ...]:
    """Rows of functions of a module that PyTorch does not have."""
    return at(home, *(row(name, "_C", torch=None) for name in names.split()))


ROWS: tuple[Row, ...] = (
    *at(
        "compat.upstream.functions",
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
        row("group_norm", "_C", torch=None),
        row("global_arange", "_C", torch=None),
        row("host_scalar_add_by_tensor", "_C", torch=None),
        row("amp_black_identity", "_C", torch=None),
        row("arg_sort", "_C", torch=None),
        row("amp_white_identity", "_C", torch=None),
        row("identity", "_C", torch=None),
        row("layer_norm", "_C"),
        row("layer_norm_affine", "_C", torch=None),
        row("rms_norm", "_C"),
        row("slice", "_C", torch=None),
        row("slice_update", "_C", torch=None),
        row("sparse_cross_entropy", "_C", torch=None),
        row("split_like", "_C", torch=None),
        row("trunc_divide", "_C", torch=None),
    ),
    *_upstream_only(
        "compat.upstream.fused",
        "fused_bias_add_scale_mask_softmax_dropout fused_codegeex_qkv_reshape "
        "fused_cross_feature_interaction fused_dot_feature_interaction "
        "fused_get_boundding_boxes_coord fused_get_center_dist fused_get_ciou_diagonal_angle "
        "fused_get_ciou_result fused_get_convex_diagonal_squared fused_get_intersection_area "
        "fused_get_iou fused_glu fused_linear_with_groupwise_quantized_weight fused_matmul_bias "
        "fused_matmul_bias_add_relu_dropout fused_mlp fused_scale_mask_bias_softmax "
        "fused_scale_tril fused_self_attention fused_weighted_sum grouped_matmul "
        "grouped_matmul_bias groupwise_dequantize rms_layer_norm skip_layer_norm skip_rms_norm",
    ),
    *_upstream_only(
        "compat.upstream.fused_attention",
        "fused_apply_rotary_emb fused_attention_concat_past_key_value "
        "fused_multi_head_attention_inference fused_multi_head_attention_inference_v2",
    ),
    *_upstream_only(
        "compat.upstream.quantization",
        "fake_quantization min_max_observer moving_average_min_max_observer quantization",
    ),
    *at("functional.linalg.products", row("linalg_cross", "_C", own="cross", torch=None)),
    *at("functional.arithmetic", row("broadcast_equal", "_C", own="eq", torch=None)),
    *_upstream_only(
        "compat.upstream.collectives",
        "comm_broadcast local_all_gather local_all_reduce local_reduce local_reduce_scatter recv "
        "send",
    ),
    *at("functional.from_data", row("_legacy_tensor_ctor", "_C", own="legacy_tensor", torch=None)),
    *_upstream_only(
        "compat.upstream.primitives",
        "batch_matmul binary_cross_entropy_with_logits_loss constant contiguous_ copy dim_gather "
        "expand_dims eye_ multi_tensor_yolov5_weight_update noncontiguous_binary_op normalization "
        "reduce_mean reduce_sum softmax_cross_entropy_grad unfold_tensor",
    ),
    *_upstream_only(
        "compat.upstream.embedding_steps",
        "one_embedding_embedding_gradient_shuffle one_embedding_embedding_shuffle "
        "one_embedding_id_shuffle one_embedding_unique_key_value_pair",
    ),
)
