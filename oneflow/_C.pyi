"""Type stub made from the public table (oneflow/api) by docs/stubs.py."""

from collections.abc import Sequence
from oneflow.core.dtype import DTypeLike
from oneflow.functional.arithmetic import add as add
from oneflow.functional.arithmetic import div as div
from oneflow.functional.arithmetic import div as divide
from oneflow.functional.arithmetic import div as true_divide
from oneflow.functional.arithmetic import mul as mul
from oneflow.functional.arithmetic import mul as multiply
from oneflow.functional.arithmetic import pow as pow
from oneflow.functional.arithmetic import sub as sub
from oneflow.functional.arithmetic import sub as subtract
from oneflow.functional.creation import normal as normal
from oneflow.functional.creation import randint as randint
from oneflow.functional.creation import randint_like as randint_like
from oneflow.functional.elementwise import cast as cast
from oneflow.functional.elementwise import clone as clone
from oneflow.functional.fused import fused_bias_add_scale_mask_softmax_dropout as fused_bias_add_scale_mask_softmax_dropout
from oneflow.functional.fused import fused_codegeex_qkv_reshape as fused_codegeex_qkv_reshape
from oneflow.functional.fused import fused_cross_feature_interaction as fused_cross_feature_interaction
from oneflow.functional.fused import fused_dot_feature_interaction as fused_dot_feature_interaction
from oneflow.functional.fused import fused_get_boundding_boxes_coord as fused_get_boundding_boxes_coord
from oneflow.functional.fused import fused_get_center_dist as fused_get_center_dist
from oneflow.functional.fused import fused_get_ciou_diagonal_angle as fused_get_ciou_diagonal_angle
from oneflow.functional.fused import fused_get_ciou_result as fused_get_ciou_result
from oneflow.functional.fused import fused_get_convex_diagonal_squared as fused_get_convex_diagonal_squared
from oneflow.functional.fused import fused_get_intersection_area as fused_get_intersection_area
from oneflow.functional.fused import fused_get_iou as fused_get_iou
from oneflow.functional.fused import fused_glu as fused_glu
from oneflow.functional.fused import fused_linear_with_groupwise_quantized_weight as fused_linear_with_groupwise_quantized_weight
from oneflow.functional.fused import fused_matmul_bias as fused_matmul_bias
from oneflow.functional.fused import fused_matmul_bias_add_relu_dropout as fused_matmul_bias_add_relu_dropout
from oneflow.functional.fused import fused_mlp as fused_mlp
from oneflow.functional.fused import fused_scale_mask_bias_softmax as fused_scale_mask_bias_softmax
from oneflow.functional.fused import fused_scale_tril as fused_scale_tril
from oneflow.functional.fused import fused_self_attention as fused_self_attention
from oneflow.functional.fused import fused_weighted_sum as fused_weighted_sum
from oneflow.functional.fused import grouped_matmul as grouped_matmul
from oneflow.functional.fused import grouped_matmul_bias as grouped_matmul_bias
from oneflow.functional.fused import groupwise_dequantize as groupwise_dequantize
from oneflow.functional.fused import rms_layer_norm as rms_layer_norm
from oneflow.functional.fused import skip_layer_norm as skip_layer_norm
from oneflow.functional.fused import skip_rms_norm as skip_rms_norm
from oneflow.functional.fused_attention import fused_apply_rotary_emb as fused_apply_rotary_emb
from oneflow.functional.fused_attention import fused_attention_concat_past_key_value as fused_attention_concat_past_key_value
from oneflow.functional.fused_attention import fused_multi_head_attention_inference as fused_multi_head_attention_inference
from oneflow.functional.fused_attention import fused_multi_head_attention_inference_v2 as fused_multi_head_attention_inference_v2
from oneflow.functional.linear_algebra import matmul as matmul
from oneflow.functional.methods import exponential_ as exponential_
from oneflow.functional.nn_activation import dropout as dropout
from oneflow.functional.nn_activation import fast_gelu as fast_gelu
from oneflow.functional.nn_activation import rrelu as rrelu
from oneflow.functional.nn_ctc import combined_margin_loss as combined_margin_loss
from oneflow.functional.nn_ctc import ctc_greedy_decoder as ctc_greedy_decoder
from oneflow.functional.nn_ctc import ctc_loss as ctc_loss
from oneflow.functional.nn_layers import group_norm as group_norm
from oneflow.functional.nn_layers import pad as pad
from oneflow.functional.nn_layers import pixel_shuffle as pixel_shuffle
from oneflow.functional.nn_loss import cross_entropy as cross_entropy
from oneflow.functional.nn_loss import mse_loss as mse_loss
from oneflow.functional.nn_loss import smooth_l1_loss as smooth_l1_loss
from oneflow.functional.nn_loss import softmax_cross_entropy as softmax_cross_entropy
from oneflow.functional.nn_loss import sparse_softmax_cross_entropy as sparse_softmax_cross_entropy
from oneflow.functional.nn_loss import triplet_margin_loss as triplet_margin_loss
from oneflow.functional.quantization import fake_quantization as fake_quantization
from oneflow.functional.quantization import min_max_observer as min_max_observer
from oneflow.functional.quantization import moving_average_min_max_observer as moving_average_min_max_observer
from oneflow.functional.quantization import quantization as quantization
from oneflow.functional.reduction import reduce_sum_like as reduce_sum_like
from oneflow.functional.searching import one_hot as one_hot
from oneflow.functional.searching import where as where
from oneflow.functional.shaping import broadcast_like as broadcast_like
from oneflow.functional.shaping import expand as expand
from oneflow.functional.shaping import flatten as flatten
from oneflow.functional.shaping import reshape as reshape
from oneflow.functional.shaping import reshape_as as reshape_like
from oneflow.functional.shaping import transpose as transpose
from oneflow.functional.upstream import bias_add as bias_add
from oneflow.functional.upstream import fused_bias_add_dropout as fused_bias_add_dropout
from oneflow.functional.upstream import fused_bias_add_gelu as fused_bias_add_gelu
from oneflow.functional.upstream import fused_fast_gelu_mul as fused_fast_gelu_mul
from oneflow.functional.upstream import fused_scale_mask_softmax as fused_scale_mask_softmax
from oneflow.functional.upstream import fused_scale_mask_softmax_dropout as fused_scale_mask_softmax_dropout
from oneflow.functional.upstream import fused_scale_tril_softmax_mask_scale as fused_scale_tril_softmax_mask_scale
from oneflow.functional.upstream import gather as gather
from oneflow.functional.upstream import gelu_with_approximate as gelu_with_approximate
from oneflow.functional.upstream import global_arange as global_arange
from oneflow.functional.upstream import host_scalar_add_by_tensor as host_scalar_add_by_tensor
from oneflow.functional.upstream import identity as amp_black_identity
from oneflow.functional.upstream import identity as amp_white_identity
from oneflow.functional.upstream import identity as identity
from oneflow.functional.upstream import layer_norm as layer_norm
from oneflow.functional.upstream import layer_norm_affine as layer_norm_affine
from oneflow.functional.upstream import rms_norm as rms_norm
from oneflow.functional.upstream import slice as slice
from oneflow.functional.upstream import slice_update as slice_update
from oneflow.functional.upstream import sparse_cross_entropy as sparse_cross_entropy
from oneflow.functional.upstream import split_like as split_like
from oneflow.functional.upstream import trunc_divide as trunc_divide
from oneflow.tensor.tensor import Tensor

def arg_sort(input: Tensor, dim: int = ..., descending: bool = ..., stable: bool = ..., *, axis: int = ...) -> Tensor: ...
def cat(tensors: Sequence[Tensor], dim: int = ..., *, axis: int = ...) -> Tensor: ...
def concat(tensors: Sequence[Tensor], dim: int = ..., *, axis: int = ...) -> Tensor: ...
def gelu(input: Tensor, approximate: str = 'none') -> Tensor: ...
def normalize(input: Tensor, p: float = ..., dim: int = ..., eps: float = ..., *, axis: int = ...) -> Tensor: ...
def quick_gelu(input: Tensor) -> Tensor: ...
def relu(input: Tensor, inplace: bool = False) -> Tensor: ...
def silu(input: Tensor, inplace: bool = False) -> Tensor: ...
def softmax(input: Tensor, dim: int | None = ..., dtype: DTypeLike | None = ..., *, axis: int | None = ...) -> Tensor: ...
def square_relu(input: Tensor) -> Tensor: ...
