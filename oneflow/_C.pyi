"""Type stub made from the public table (oneflow/api) by docs/stubs.py."""

from collections.abc import Sequence
from oneflow.compat.torch.inner_c import DisableTorchFunction as DisableTorchFunction
from oneflow.compat.torch.inner_c import DisableTorchFunctionSubclass as DisableTorchFunctionSubclass
from oneflow.compat.torch.inner_c import _are_functorch_transforms_active as _are_functorch_transforms_active
from oneflow.compat.torch.inner_c import _cuda_clearCublasWorkspaces as _cuda_clearCublasWorkspaces
from oneflow.compat.torch.inner_c import _cuda_isInBadFork as _cuda_isInBadFork
from oneflow.compat.torch.inner_c import _disabled_torch_function_impl as _disabled_torch_function_impl
from oneflow.compat.torch.inner_c import _get_accelerator as _get_accelerator
from oneflow.compat.torch.inner_c import _get_default_device as _get_default_device
from oneflow.compat.torch.inner_c import _get_privateuse1_backend_name as _get_privateuse1_backend_name
from oneflow.compat.torch.inner_c import _get_tracing_state as _get_tracing_state
from oneflow.compat.torch.inner_c import _is_torch_function_all_disabled as _is_torch_function_all_disabled
from oneflow.compat.torch.inner_c import _is_torch_function_enabled as _is_torch_function_enabled
from oneflow.compat.torch.inner_c import _is_torch_function_mode_enabled as _is_torch_function_mode_enabled
from oneflow.compat.torch.inner_c import _jit_can_fuse_on_cpu as _jit_can_fuse_on_cpu
from oneflow.compat.torch.inner_c import _jit_can_fuse_on_gpu as _jit_can_fuse_on_gpu
from oneflow.compat.torch.inner_c import _jit_override_can_fuse_on_cpu as _jit_override_can_fuse_on_cpu
from oneflow.compat.torch.inner_c import _jit_override_can_fuse_on_gpu as _jit_override_can_fuse_on_gpu
from oneflow.compat.torch.inner_c import _jit_set_nvfuser_enabled as _jit_set_nvfuser_enabled
from oneflow.compat.torch.inner_c import _jit_set_nvfuser_guard_mode as _jit_set_nvfuser_guard_mode
from oneflow.compat.torch.inner_c import _jit_set_profiling_executor as _jit_set_profiling_executor
from oneflow.compat.torch.inner_c import _jit_set_profiling_mode as _jit_set_profiling_mode
from oneflow.compat.torch.inner_c import _jit_set_texpr_fuser_enabled as _jit_set_texpr_fuser_enabled
from oneflow.compat.torch.inner_c import _parse_to as _parse_to
from oneflow.compat.torch.inner_c import _set_math_sdp_allow_fp16_bf16_reduction as _set_math_sdp_allow_fp16_bf16_reduction
from oneflow.compat.torch.legacy_types import BFloat16Tensor as BFloat16Tensor
from oneflow.compat.torch.legacy_types import BoolTensor as BoolTensor
from oneflow.compat.torch.legacy_types import ByteTensor as ByteTensor
from oneflow.compat.torch.legacy_types import CharTensor as CharTensor
from oneflow.compat.torch.legacy_types import ComplexDoubleTensor as ComplexDoubleTensor
from oneflow.compat.torch.legacy_types import ComplexFloatTensor as ComplexFloatTensor
from oneflow.compat.torch.legacy_types import DoubleTensor as DoubleTensor
from oneflow.compat.torch.legacy_types import FloatTensor as FloatTensor
from oneflow.compat.torch.legacy_types import HalfTensor as HalfTensor
from oneflow.compat.torch.legacy_types import IntTensor as IntTensor
from oneflow.compat.torch.legacy_types import LongTensor as LongTensor
from oneflow.compat.torch.legacy_types import type as type
from oneflow.compat.torch.methods import apply_ as apply_
from oneflow.compat.torch.methods import can_cast as can_cast
from oneflow.compat.torch.methods import cauchy_ as cauchy_
from oneflow.compat.torch.methods import detach_ as detach_
from oneflow.compat.torch.methods import empty_strided as empty_strided
from oneflow.compat.torch.methods import fill_diagonal_ as fill_diagonal_
from oneflow.compat.torch.methods import geometric_ as geometric_
from oneflow.compat.torch.methods import is_inference as is_inference
from oneflow.compat.torch.methods import is_set_to as is_set_to
from oneflow.compat.torch.methods import is_shared as is_shared
from oneflow.compat.torch.methods import is_signed as is_signed
from oneflow.compat.torch.methods import load as load
from oneflow.compat.torch.methods import log_normal_ as log_normal_
from oneflow.compat.torch.methods import map_ as map_
from oneflow.compat.torch.methods import offload as offload
from oneflow.compat.torch.methods import promote_types as promote_types
from oneflow.compat.torch.methods import record_stream as record_stream
from oneflow.compat.torch.methods import resize_ as resize_
from oneflow.compat.torch.methods import resize_as_ as resize_as_
from oneflow.compat.torch.methods import result_type as result_type
from oneflow.compat.torch.methods import scalar_tensor as scalar_tensor
from oneflow.compat.torch.methods import set_ as set_
from oneflow.compat.torch.methods import share_memory_ as share_memory_
from oneflow.compat.torch.methods import t_ as t_
from oneflow.compat.torch.methods import transpose_ as _methods_transpose_
from oneflow.compat.torch.methods import transpose_ as transpose_
from oneflow.compat.torch.native_functions import constant_pad_nd as constant_pad_nd
from oneflow.compat.torch.native_functions import detach as detach
from oneflow.compat.torch.native_functions import empty_permuted as empty_permuted
from oneflow.compat.torch.native_functions import grid_sampler as _native_functions_grid_sampler
from oneflow.compat.torch.native_functions import grid_sampler as grid_sampler
from oneflow.compat.torch.native_functions import histogramdd as histogramdd
from oneflow.compat.torch.native_functions import linear_cross_entropy as linear_cross_entropy
from oneflow.compat.torch.native_functions import native_batch_norm as native_batch_norm
from oneflow.compat.torch.native_functions import native_dropout as native_dropout
from oneflow.compat.torch.native_functions import native_group_norm as native_group_norm
from oneflow.compat.torch.native_functions import native_layer_norm as native_layer_norm
from oneflow.compat.torch.native_functions import new_empty_strided as new_empty_strided
from oneflow.compat.torch.native_functions import rdiv as _native_functions_rdiv
from oneflow.compat.torch.small import _convert_indices_from_coo_to_csr as _convert_indices_from_coo_to_csr
from oneflow.compat.torch.small import _convert_indices_from_csr_to_coo as _convert_indices_from_csr_to_coo
from oneflow.compat.torch.small import _grouped_mm as _grouped_mm
from oneflow.compat.torch.small import _int_mm as _int_mm
from oneflow.compat.torch.small import cdata as _small_cdata
from oneflow.compat.torch.small import grouped_mm as grouped_mm
from oneflow.compat.torch.small import segment_reduce as _small_segment_reduce
from oneflow.compat.torch.small import segment_reduce as segment_reduce
from oneflow.compat.torch.small import to_dense as to_dense
from oneflow.compat.torch.untyped_storage import UntypedStorage as UntypedStorage
from oneflow.compat.torch.untyped_storage import asarray as asarray
from oneflow.compat.torch.untyped_storage import untyped_storage as untyped_storage
from oneflow.compat.torch.untyped_storage import view as view
from oneflow.compat.upstream.collectives import comm_broadcast as comm_broadcast
from oneflow.compat.upstream.collectives import local_all_gather as local_all_gather
from oneflow.compat.upstream.collectives import local_all_reduce as local_all_reduce
from oneflow.compat.upstream.collectives import local_reduce as local_reduce
from oneflow.compat.upstream.collectives import local_reduce_scatter as local_reduce_scatter
from oneflow.compat.upstream.collectives import recv as recv
from oneflow.compat.upstream.collectives import send as send
from oneflow.compat.upstream.embedding_steps import one_embedding_adagrad_update as one_embedding_adagrad_update
from oneflow.compat.upstream.embedding_steps import one_embedding_adam_update as one_embedding_adam_update
from oneflow.compat.upstream.embedding_steps import one_embedding_embedding_gradient_shuffle as one_embedding_embedding_gradient_shuffle
from oneflow.compat.upstream.embedding_steps import one_embedding_embedding_put as one_embedding_embedding_put
from oneflow.compat.upstream.embedding_steps import one_embedding_embedding_shuffle as one_embedding_embedding_shuffle
from oneflow.compat.upstream.embedding_steps import one_embedding_ftrl_update as one_embedding_ftrl_update
from oneflow.compat.upstream.embedding_steps import one_embedding_fused_lookup as one_embedding_fused_lookup
from oneflow.compat.upstream.embedding_steps import one_embedding_fused_lookup_grad as one_embedding_fused_lookup_grad
from oneflow.compat.upstream.embedding_steps import one_embedding_id_shuffle as one_embedding_id_shuffle
from oneflow.compat.upstream.embedding_steps import one_embedding_lookup as one_embedding_lookup
from oneflow.compat.upstream.embedding_steps import one_embedding_sgd_update as one_embedding_sgd_update
from oneflow.compat.upstream.embedding_steps import one_embedding_unique_key_value_pair as one_embedding_unique_key_value_pair
from oneflow.compat.upstream.functions import amp_black_identity as amp_black_identity
from oneflow.compat.upstream.functions import amp_white_identity as amp_white_identity
from oneflow.compat.upstream.functions import arg_sort as arg_sort
from oneflow.compat.upstream.functions import bias_add as bias_add
from oneflow.compat.upstream.functions import depend as depend
from oneflow.compat.upstream.functions import fused_bias_add_dropout as fused_bias_add_dropout
from oneflow.compat.upstream.functions import fused_bias_add_gelu as fused_bias_add_gelu
from oneflow.compat.upstream.functions import fused_fast_gelu_mul as fused_fast_gelu_mul
from oneflow.compat.upstream.functions import fused_scale_mask_softmax as fused_scale_mask_softmax
from oneflow.compat.upstream.functions import fused_scale_mask_softmax_dropout as fused_scale_mask_softmax_dropout
from oneflow.compat.upstream.functions import fused_scale_tril_softmax_mask_scale as fused_scale_tril_softmax_mask_scale
from oneflow.compat.upstream.functions import gather as gather
from oneflow.compat.upstream.functions import gelu_with_approximate as gelu_with_approximate
from oneflow.compat.upstream.functions import global_arange as global_arange
from oneflow.compat.upstream.functions import group_norm as group_norm
from oneflow.compat.upstream.functions import host_scalar_add_by_tensor as host_scalar_add_by_tensor
from oneflow.compat.upstream.functions import identity as identity
from oneflow.compat.upstream.functions import layer_norm as layer_norm
from oneflow.compat.upstream.functions import layer_norm_affine as layer_norm_affine
from oneflow.compat.upstream.functions import rms_norm as rms_norm
from oneflow.compat.upstream.functions import slice as slice
from oneflow.compat.upstream.functions import slice_update as slice_update
from oneflow.compat.upstream.functions import sparse_cross_entropy as sparse_cross_entropy
from oneflow.compat.upstream.functions import split_like as split_like
from oneflow.compat.upstream.functions import trunc_divide as trunc_divide
from oneflow.compat.upstream.fused import fused_bias_add_scale_mask_softmax_dropout as fused_bias_add_scale_mask_softmax_dropout
from oneflow.compat.upstream.fused import fused_codegeex_qkv_reshape as fused_codegeex_qkv_reshape
from oneflow.compat.upstream.fused import fused_cross_feature_interaction as fused_cross_feature_interaction
from oneflow.compat.upstream.fused import fused_dot_feature_interaction as fused_dot_feature_interaction
from oneflow.compat.upstream.fused import fused_get_boundding_boxes_coord as fused_get_boundding_boxes_coord
from oneflow.compat.upstream.fused import fused_get_center_dist as fused_get_center_dist
from oneflow.compat.upstream.fused import fused_get_ciou_diagonal_angle as fused_get_ciou_diagonal_angle
from oneflow.compat.upstream.fused import fused_get_ciou_result as fused_get_ciou_result
from oneflow.compat.upstream.fused import fused_get_convex_diagonal_squared as fused_get_convex_diagonal_squared
from oneflow.compat.upstream.fused import fused_get_intersection_area as fused_get_intersection_area
from oneflow.compat.upstream.fused import fused_get_iou as fused_get_iou
from oneflow.compat.upstream.fused import fused_glu as fused_glu
from oneflow.compat.upstream.fused import fused_linear_with_groupwise_quantized_weight as fused_linear_with_groupwise_quantized_weight
from oneflow.compat.upstream.fused import fused_matmul_bias as fused_matmul_bias
from oneflow.compat.upstream.fused import fused_matmul_bias_add_relu_dropout as fused_matmul_bias_add_relu_dropout
from oneflow.compat.upstream.fused import fused_mlp as fused_mlp
from oneflow.compat.upstream.fused import fused_scale_mask_bias_softmax as fused_scale_mask_bias_softmax
from oneflow.compat.upstream.fused import fused_scale_tril as fused_scale_tril
from oneflow.compat.upstream.fused import fused_self_attention as fused_self_attention
from oneflow.compat.upstream.fused import fused_weighted_sum as fused_weighted_sum
from oneflow.compat.upstream.fused import grouped_matmul as grouped_matmul
from oneflow.compat.upstream.fused import grouped_matmul_bias as grouped_matmul_bias
from oneflow.compat.upstream.fused import groupwise_dequantize as groupwise_dequantize
from oneflow.compat.upstream.fused import rms_layer_norm as rms_layer_norm
from oneflow.compat.upstream.fused import skip_layer_norm as skip_layer_norm
from oneflow.compat.upstream.fused import skip_rms_norm as skip_rms_norm
from oneflow.compat.upstream.fused_attention import fused_apply_rotary_emb as fused_apply_rotary_emb
from oneflow.compat.upstream.fused_attention import fused_attention_concat_past_key_value as fused_attention_concat_past_key_value
from oneflow.compat.upstream.fused_attention import fused_multi_head_attention_inference as fused_multi_head_attention_inference
from oneflow.compat.upstream.fused_attention import fused_multi_head_attention_inference_v2 as fused_multi_head_attention_inference_v2
from oneflow.compat.upstream.primitives import Axes
from oneflow.compat.upstream.primitives import assign_local_tensor as assign_local_tensor
from oneflow.compat.upstream.primitives import avg_pool2d_nhwc as avg_pool2d_nhwc
from oneflow.compat.upstream.primitives import batch_matmul as batch_matmul
from oneflow.compat.upstream.primitives import binary_cross_entropy_loss as binary_cross_entropy_loss
from oneflow.compat.upstream.primitives import binary_cross_entropy_with_logits_loss as binary_cross_entropy_with_logits_loss
from oneflow.compat.upstream.primitives import binary_cross_entropy_with_logits_loss_grad as binary_cross_entropy_with_logits_loss_grad
from oneflow.compat.upstream.primitives import constant as constant
from oneflow.compat.upstream.primitives import contiguous_ as contiguous_
from oneflow.compat.upstream.primitives import copy as copy
from oneflow.compat.upstream.primitives import cosh_grad as cosh_grad
from oneflow.compat.upstream.primitives import deconv1d as deconv1d
from oneflow.compat.upstream.primitives import deconv2d as deconv2d
from oneflow.compat.upstream.primitives import deconv3d as deconv3d
from oneflow.compat.upstream.primitives import distributed_sparse_cross_entropy as distributed_sparse_cross_entropy
from oneflow.compat.upstream.primitives import embedding_renorm_ as embedding_renorm_
from oneflow.compat.upstream.primitives import eye_ as eye_
from oneflow.compat.upstream.primitives import global_constant as global_constant
from oneflow.compat.upstream.primitives import global_empty as global_empty
from oneflow.compat.upstream.primitives import global_tensor_constant as global_tensor_constant
from oneflow.compat.upstream.primitives import image_flip as image_flip
from oneflow.compat.upstream.primitives import kl_div_loss as kl_div_loss
from oneflow.compat.upstream.primitives import matrix_vector_product as matrix_vector_product
from oneflow.compat.upstream.primitives import noncontiguous_binary_op as noncontiguous_binary_op
from oneflow.compat.upstream.primitives import reciprocal_no_nan as reciprocal_no_nan
from oneflow.compat.upstream.primitives import reduce_max as reduce_max
from oneflow.compat.upstream.primitives import reduce_max_device_stage as reduce_max_device_stage
from oneflow.compat.upstream.primitives import reduce_max_global_stage as reduce_max_global_stage
from oneflow.compat.upstream.primitives import reduce_min as reduce_min
from oneflow.compat.upstream.primitives import reduce_min_device_stage as reduce_min_device_stage
from oneflow.compat.upstream.primitives import reduce_min_global_stage as reduce_min_global_stage
from oneflow.compat.upstream.primitives import rint as rint
from oneflow.compat.upstream.primitives import scatternd as scatternd
from oneflow.compat.upstream.primitives import scatterndlike as scatterndlike
from oneflow.compat.upstream.primitives import select_top_n as select_top_n
from oneflow.compat.upstream.primitives import sigmoid_grad as sigmoid_grad
from oneflow.compat.upstream.primitives import slice_view_1d_contiguous as slice_view_1d_contiguous
from oneflow.compat.upstream.primitives import softmax_cross_entropy_grad as softmax_cross_entropy_grad
from oneflow.compat.upstream.primitives import sqrt_square_sum as sqrt_square_sum
from oneflow.compat.upstream.primitives import stream_touch as stream_touch
from oneflow.compat.upstream.primitives import tan_grad as tan_grad
from oneflow.compat.upstream.primitives import tanh_grad as tanh_grad
from oneflow.compat.upstream.primitives import tensor_constant as tensor_constant
from oneflow.compat.upstream.primitives import tensor_setitem as tensor_setitem
from oneflow.compat.upstream.primitives import throw_error as throw_error
from oneflow.compat.upstream.primitives import unfold_tensor as unfold_tensor
from oneflow.compat.upstream.primitives import unsorted_segment_sum as unsorted_segment_sum
from oneflow.compat.upstream.primitives import unsorted_segment_sum_like as unsorted_segment_sum_like
from oneflow.compat.upstream.primitives import upsample_bicubic_2d as upsample_bicubic_2d
from oneflow.compat.upstream.primitives import upsample_bilinear_2d as upsample_bilinear_2d
from oneflow.compat.upstream.primitives import upsample_linear_1d as upsample_linear_1d
from oneflow.compat.upstream.primitives import upsample_nearest_1d as upsample_nearest_1d
from oneflow.compat.upstream.primitives import upsample_nearest_2d as upsample_nearest_2d
from oneflow.compat.upstream.primitives import upsample_nearest_3d as upsample_nearest_3d
from oneflow.compat.upstream.primitives import upsample_trilinear_3d as upsample_trilinear_3d
from oneflow.compat.upstream.primitives import vector_matrix_product as vector_matrix_product
from oneflow.compat.upstream.quantization import fake_quantization as fake_quantization
from oneflow.compat.upstream.quantization import fake_quantize_per_channel_affine as fake_quantize_per_channel_affine
from oneflow.compat.upstream.quantization import fake_quantize_per_tensor_affine as fake_quantize_per_tensor_affine
from oneflow.compat.upstream.quantization import min_max_observer as min_max_observer
from oneflow.compat.upstream.quantization import moving_average_min_max_observer as moving_average_min_max_observer
from oneflow.compat.upstream.quantization import quantization as quantization
from oneflow.compat.upstream.tensor_buffers import gen_tensor_buffer as gen_tensor_buffer
from oneflow.compat.upstream.tensor_buffers import tensor_buffer_to_list_of_tensors as tensor_buffer_to_list_of_tensors
from oneflow.compat.upstream.tensor_buffers import tensor_buffer_to_tensor as tensor_buffer_to_tensor
from oneflow.compat.upstream.tensor_buffers import tensor_to_tensor_buffer as tensor_to_tensor_buffer
from oneflow.compat.upstream.training_steps import batch_norm_backward_elemt as batch_norm_backward_elemt
from oneflow.compat.upstream.training_steps import batch_norm_backward_reduce as batch_norm_backward_reduce
from oneflow.compat.upstream.training_steps import batch_norm_elemt as batch_norm_elemt
from oneflow.compat.upstream.training_steps import batch_norm_gather_stats_with_counts as batch_norm_gather_stats_with_counts
from oneflow.compat.upstream.training_steps import batch_norm_stats as batch_norm_stats
from oneflow.compat.upstream.training_steps import fused_clip_grad as fused_clip_grad
from oneflow.compat.upstream.training_steps import gru_cell as gru_cell
from oneflow.compat.upstream.training_steps import lstm_cell as lstm_cell
from oneflow.compat.upstream.training_steps import multi_tensor_adam_update as multi_tensor_adam_update
from oneflow.compat.upstream.training_steps import multi_tensor_momentum_update as multi_tensor_momentum_update
from oneflow.compat.upstream.training_steps import multi_tensor_sgd_update as multi_tensor_sgd_update
from oneflow.compat.upstream.training_steps import multi_tensor_yolov5_weight_update as multi_tensor_yolov5_weight_update
from oneflow.compat.upstream.training_steps import normalization as normalization
from oneflow.compat.upstream.training_steps import normalization_add_relu as normalization_add_relu
from oneflow.compat.upstream.training_steps import rnn_relu_cell as rnn_relu_cell
from oneflow.compat.upstream.training_steps import rnn_tanh_cell as rnn_tanh_cell
from oneflow.core.dtype import DType
from oneflow.core.dtype import DTypeLike
from oneflow.core.operand import DimLike
from oneflow.core.operand import Number
from oneflow.core.operand import TensorLike
from oneflow.functional.arithmetic import add as add
from oneflow.functional.arithmetic import addcdiv as addcdiv
from oneflow.functional.arithmetic import addcmul as addcmul
from oneflow.functional.arithmetic import atan2 as _arithmetic_atan2
from oneflow.functional.arithmetic import atan2 as atan2
from oneflow.functional.arithmetic import div as _arithmetic_div
from oneflow.functional.arithmetic import div as div
from oneflow.functional.arithmetic import eq as _arithmetic_eq
from oneflow.functional.arithmetic import eq as eq
from oneflow.functional.arithmetic import floor_divide as floor_divide
from oneflow.functional.arithmetic import fmod as fmod
from oneflow.functional.arithmetic import ge as _arithmetic_ge
from oneflow.functional.arithmetic import ge as ge
from oneflow.functional.arithmetic import gt as _arithmetic_gt
from oneflow.functional.arithmetic import gt as gt
from oneflow.functional.arithmetic import isclose as isclose
from oneflow.functional.arithmetic import le as _arithmetic_le
from oneflow.functional.arithmetic import le as le
from oneflow.functional.arithmetic import lerp as lerp
from oneflow.functional.arithmetic import lt as _arithmetic_lt
from oneflow.functional.arithmetic import lt as lt
from oneflow.functional.arithmetic import mul as _arithmetic_mul
from oneflow.functional.arithmetic import mul as mul
from oneflow.functional.arithmetic import ne as _arithmetic_ne
from oneflow.functional.arithmetic import ne as ne
from oneflow.functional.arithmetic import pow as pow
from oneflow.functional.arithmetic import remainder as remainder
from oneflow.functional.arithmetic import sub as _arithmetic_sub
from oneflow.functional.arithmetic import sub as sub
from oneflow.functional.complex_numbers import abs as _complex_numbers_abs
from oneflow.functional.complex_numbers import abs as abs
from oneflow.functional.complex_numbers import angle as angle
from oneflow.functional.complex_numbers import cdouble as cdouble
from oneflow.functional.complex_numbers import cfloat as cfloat
from oneflow.functional.complex_numbers import conj as conj
from oneflow.functional.complex_numbers import conj_physical as conj_physical
from oneflow.functional.complex_numbers import imag as imag
from oneflow.functional.complex_numbers import is_complex as is_complex
from oneflow.functional.complex_numbers import is_conj as _complex_numbers_is_conj
from oneflow.functional.complex_numbers import is_conj as is_conj
from oneflow.functional.complex_numbers import isreal as isreal
from oneflow.functional.complex_numbers import make as _complex_numbers_make
from oneflow.functional.complex_numbers import polar as polar
from oneflow.functional.complex_numbers import real as real
from oneflow.functional.complex_numbers import resolve as _complex_numbers_resolve
from oneflow.functional.complex_numbers import sgn as sgn
from oneflow.functional.complex_numbers import view_as_complex as view_as_complex
from oneflow.functional.complex_numbers import view_as_real as view_as_real
from oneflow.functional.concat_split import Sections
from oneflow.functional.concat_split import column_stack as column_stack
from oneflow.functional.concat_split import dstack as dstack
from oneflow.functional.concat_split import hsplit as hsplit
from oneflow.functional.concat_split import hstack as hstack
from oneflow.functional.concat_split import row_stack as row_stack
from oneflow.functional.concat_split import vsplit as vsplit
from oneflow.functional.concat_split import vstack as vstack
from oneflow.functional.conversion import cpu as cpu
from oneflow.functional.conversion import cuda as cuda
from oneflow.functional.conversion import get_device as get_device
from oneflow.functional.conversion import to as to
from oneflow.functional.conversion import type_as as type_as
from oneflow.functional.creation import arange as arange
from oneflow.functional.creation import bernoulli as bernoulli
from oneflow.functional.creation import empty as empty
from oneflow.functional.creation import empty_like as empty_like
from oneflow.functional.creation import eye as eye
from oneflow.functional.creation import full as full
from oneflow.functional.creation import full_like as full_like
from oneflow.functional.creation import linspace as linspace
from oneflow.functional.creation import logspace as logspace
from oneflow.functional.creation import new_empty as new_empty
from oneflow.functional.creation import new_full as new_full
from oneflow.functional.creation import new_ones as new_ones
from oneflow.functional.creation import new_zeros as new_zeros
from oneflow.functional.creation import normal as normal
from oneflow.functional.creation import ones as ones
from oneflow.functional.creation import ones_like as ones_like
from oneflow.functional.creation import poisson as poisson
from oneflow.functional.creation import rand as rand
from oneflow.functional.creation import rand_like as rand_like
from oneflow.functional.creation import randint as randint
from oneflow.functional.creation import randint_like as randint_like
from oneflow.functional.creation import randn as randn
from oneflow.functional.creation import randn_like as randn_like
from oneflow.functional.creation import randperm as randperm
from oneflow.functional.creation import zeros as zeros
from oneflow.functional.creation import zeros_like as zeros_like
from oneflow.functional.elementwise import cast as cast
from oneflow.functional.elementwise import clamp as _elementwise_clamp
from oneflow.functional.elementwise import clamp as clamp
from oneflow.functional.elementwise import clamp_max as clamp_max
from oneflow.functional.elementwise import clamp_min as clamp_min
from oneflow.functional.elementwise import clone as clone
from oneflow.functional.elementwise import frac as frac
from oneflow.functional.elementwise import logaddexp as logaddexp
from oneflow.functional.elementwise import masked_fill as masked_fill
from oneflow.functional.elementwise import nan_to_num as nan_to_num
from oneflow.functional.elementwise import round as round
from oneflow.functional.elementwise import rsub as rsub
from oneflow.functional.elementwise import signbit as signbit
from oneflow.functional.fft import Dims
from oneflow.functional.fft import fft as fft
from oneflow.functional.fft import fft2 as fft2
from oneflow.functional.fft import fftfreq as fftfreq
from oneflow.functional.fft import fftn as fftn
from oneflow.functional.fft import hfft as hfft
from oneflow.functional.fft import hfft2 as hfft2
from oneflow.functional.fft import hfftn as hfftn
from oneflow.functional.fft import ifft as ifft
from oneflow.functional.fft import ifft2 as ifft2
from oneflow.functional.fft import ifftn as ifftn
from oneflow.functional.fft import ihfft as ihfft
from oneflow.functional.fft import ihfft2 as ihfft2
from oneflow.functional.fft import ihfftn as ihfftn
from oneflow.functional.fft import irfft as irfft
from oneflow.functional.fft import irfft2 as irfft2
from oneflow.functional.fft import irfftn as irfftn
from oneflow.functional.fft import istft as istft
from oneflow.functional.fft import rfft as rfft
from oneflow.functional.fft import rfft2 as rfft2
from oneflow.functional.fft import rfftfreq as rfftfreq
from oneflow.functional.fft import rfftn as rfftn
from oneflow.functional.fft import stft as stft
from oneflow.functional.from_data import as_tensor as as_tensor
from oneflow.functional.from_data import frombuffer as frombuffer
from oneflow.functional.from_data import legacy_tensor as _from_data_legacy_tensor
from oneflow.functional.from_data import tensor as tensor
from oneflow.functional.gather_scatter import batch_gather as batch_gather
from oneflow.functional.gather_scatter import gather_nd as gather_nd
from oneflow.functional.index_update import diagonal_scatter as diagonal_scatter
from oneflow.functional.index_update import index_put as index_put
from oneflow.functional.index_update import masked_scatter as masked_scatter
from oneflow.functional.index_update import nonzero_static as nonzero_static
from oneflow.functional.index_update import put as put
from oneflow.functional.index_update import scatter_nd as scatter_nd
from oneflow.functional.index_update import take as take
from oneflow.functional.index_update import tensor_scatter_nd_update as tensor_scatter_nd_update
from oneflow.functional.initial import kaiming_normal_ as kaiming_normal_
from oneflow.functional.initial import kaiming_uniform_ as kaiming_uniform_
from oneflow.functional.initial import orthogonal_ as orthogonal_
from oneflow.functional.initial import trunc_normal_ as trunc_normal_
from oneflow.functional.initial import xavier_normal_ as xavier_normal_
from oneflow.functional.initial import xavier_uniform_ as xavier_uniform_
from oneflow.functional.linalg.matrices import cholesky_ex as cholesky_ex
from oneflow.functional.linalg.matrices import cholesky_inverse as cholesky_inverse
from oneflow.functional.linalg.matrices import cholesky_method as _matrices_cholesky_method
from oneflow.functional.linalg.matrices import cholesky_solve as cholesky_solve
from oneflow.functional.linalg.matrices import det as det
from oneflow.functional.linalg.matrices import eig as eig
from oneflow.functional.linalg.matrices import eigh as eigh
from oneflow.functional.linalg.matrices import eigvals as eigvals
from oneflow.functional.linalg.matrices import eigvalsh as eigvalsh
from oneflow.functional.linalg.matrices import inv as _matrices_inv
from oneflow.functional.linalg.matrices import inv as inv
from oneflow.functional.linalg.matrices import inv_ex as inv_ex
from oneflow.functional.linalg.matrices import logdet as logdet
from oneflow.functional.linalg.matrices import lstsq as lstsq
from oneflow.functional.linalg.matrices import matrix_power as matrix_power
from oneflow.functional.linalg.matrices import matrix_rank as matrix_rank
from oneflow.functional.linalg.matrices import pinv as _matrices_pinv
from oneflow.functional.linalg.matrices import pinv as pinv
from oneflow.functional.linalg.matrices import qr_of as _matrices_qr_of
from oneflow.functional.linalg.matrices import slogdet as slogdet
from oneflow.functional.linalg.matrices import solve as solve
from oneflow.functional.linalg.matrices import solve_ex as solve_ex
from oneflow.functional.linalg.matrices import solve_triangular as solve_triangular
from oneflow.functional.linalg.matrices import svd_of as _matrices_svd_of
from oneflow.functional.linalg.matrices import svdvals as svdvals
from oneflow.functional.linalg.matrices import triangular_solve as triangular_solve
from oneflow.functional.linalg.norms import cond as cond
from oneflow.functional.linalg.packed_factors import geqrf as geqrf
from oneflow.functional.linalg.packed_factors import householder_product as _packed_factors_householder_product
from oneflow.functional.linalg.packed_factors import householder_product as householder_product
from oneflow.functional.linalg.packed_factors import ldl_factor as ldl_factor
from oneflow.functional.linalg.packed_factors import ldl_factor_ex as ldl_factor_ex
from oneflow.functional.linalg.packed_factors import ldl_solve as ldl_solve
from oneflow.functional.linalg.packed_factors import lu_factor as lu_factor
from oneflow.functional.linalg.packed_factors import lu_factor_ex as lu_factor_ex
from oneflow.functional.linalg.packed_factors import lu_packed as _packed_factors_lu_packed
from oneflow.functional.linalg.packed_factors import lu_solve_of as _packed_factors_lu_solve_of
from oneflow.functional.linalg.packed_factors import lu_unpack as lu_unpack
from oneflow.functional.linalg.packed_factors import matrix_exp as matrix_exp
from oneflow.functional.linalg.packed_factors import ormqr as ormqr
from oneflow.functional.linalg.packed_factors import pca_lowrank as pca_lowrank
from oneflow.functional.linalg.packed_factors import svd_lowrank as svd_lowrank
from oneflow.functional.linalg.packed_factors import tensorinv as tensorinv
from oneflow.functional.linalg.packed_factors import tensorsolve as tensorsolve
from oneflow.functional.linalg.products import addmm as addmm
from oneflow.functional.linalg.products import baddbmm as baddbmm
from oneflow.functional.linalg.products import bmm as bmm
from oneflow.functional.linalg.products import dot as dot
from oneflow.functional.linalg.products import einsum as einsum
from oneflow.functional.linalg.products import matmul as matmul
from oneflow.functional.linalg.products import mm as mm
from oneflow.functional.linalg.products import mv as mv
from oneflow.functional.linalg.products import outer as _products_outer
from oneflow.functional.linalg.products import outer as outer
from oneflow.functional.linalg.products import tensordot as tensordot
from oneflow.functional.methods import as_strided_ as as_strided_
from oneflow.functional.methods import check_meta_consistency as check_meta_consistency
from oneflow.functional.methods import copy_ as copy_
from oneflow.functional.methods import data_ptr as data_ptr
from oneflow.functional.methods import dim as _methods_dim
from oneflow.functional.methods import dim as dim
from oneflow.functional.methods import element_size as element_size
from oneflow.functional.methods import exponential_ as exponential_
from oneflow.functional.methods import global_id as global_id
from oneflow.functional.methods import global_to_global as global_to_global
from oneflow.functional.methods import is_contiguous as is_contiguous
from oneflow.functional.methods import is_offloaded as is_offloaded
from oneflow.functional.methods import is_pinned as is_pinned
from oneflow.functional.methods import is_view as is_view
from oneflow.functional.methods import local_to_global as local_to_global
from oneflow.functional.methods import new as new
from oneflow.functional.methods import new_tensor as new_tensor
from oneflow.functional.methods import normal_ as normal_
from oneflow.functional.methods import numel as _methods_numel
from oneflow.functional.methods import pin_memory as pin_memory
from oneflow.functional.methods import random_ as random_
from oneflow.functional.methods import squeeze_ as squeeze_
from oneflow.functional.methods import storage_offset as storage_offset
from oneflow.functional.methods import to_bfloat16 as _methods_to_bfloat16
from oneflow.functional.methods import to_bool as _methods_to_bool
from oneflow.functional.methods import to_consistent as to_consistent
from oneflow.functional.methods import to_float16 as _methods_to_float16
from oneflow.functional.methods import to_float32 as _methods_to_float32
from oneflow.functional.methods import to_float64 as _methods_to_float64
from oneflow.functional.methods import to_global as to_global
from oneflow.functional.methods import to_int16 as _methods_to_int16
from oneflow.functional.methods import to_int32 as _methods_to_int32
from oneflow.functional.methods import to_int64 as _methods_to_int64
from oneflow.functional.methods import to_int8 as _methods_to_int8
from oneflow.functional.methods import to_local as to_local
from oneflow.functional.methods import to_uint8 as _methods_to_uint8
from oneflow.functional.methods import uniform_ as uniform_
from oneflow.functional.methods import unsqueeze_ as unsqueeze_
from oneflow.functional.methods import zero_ as zero_
from oneflow.functional.metrics import roc_auc_score as roc_auc_score
from oneflow.functional.nn.activation import alpha_dropout as alpha_dropout
from oneflow.functional.nn.activation import dropout as dropout
from oneflow.functional.nn.activation import dropout1d as dropout1d
from oneflow.functional.nn.activation import dropout2d as dropout2d
from oneflow.functional.nn.activation import dropout3d as dropout3d
from oneflow.functional.nn.activation import fast_gelu as fast_gelu
from oneflow.functional.nn.activation import feature_alpha_dropout as feature_alpha_dropout
from oneflow.functional.nn.activation import rrelu as rrelu
from oneflow.functional.nn.attention import scaled_dot_product_attention as scaled_dot_product_attention
from oneflow.functional.nn.bags import embedding_bag as embedding_bag
from oneflow.functional.nn.convolution_and_pool import adaptive_avg_pool1d as adaptive_avg_pool1d
from oneflow.functional.nn.convolution_and_pool import adaptive_avg_pool2d as adaptive_avg_pool2d
from oneflow.functional.nn.convolution_and_pool import adaptive_avg_pool3d as adaptive_avg_pool3d
from oneflow.functional.nn.convolution_and_pool import avg_pool1d as avg_pool1d
from oneflow.functional.nn.convolution_and_pool import avg_pool2d as avg_pool2d
from oneflow.functional.nn.convolution_and_pool import avg_pool3d as avg_pool3d
from oneflow.functional.nn.convolution_and_pool import conv1d as conv1d
from oneflow.functional.nn.convolution_and_pool import conv2d as conv2d
from oneflow.functional.nn.convolution_and_pool import conv3d as conv3d
from oneflow.functional.nn.convolution_and_pool import conv_tbc as conv_tbc
from oneflow.functional.nn.convolution_and_pool import conv_transpose1d as conv_transpose1d
from oneflow.functional.nn.convolution_and_pool import conv_transpose2d as conv_transpose2d
from oneflow.functional.nn.convolution_and_pool import conv_transpose3d as conv_transpose3d
from oneflow.functional.nn.convolution_and_pool import max_pool1d as max_pool1d
from oneflow.functional.nn.convolution_and_pool import max_pool1d_with_indices as max_pool1d_with_indices
from oneflow.functional.nn.convolution_and_pool import max_pool2d as max_pool2d
from oneflow.functional.nn.convolution_and_pool import max_pool2d_with_indices as max_pool2d_with_indices
from oneflow.functional.nn.convolution_and_pool import max_pool3d as max_pool3d
from oneflow.functional.nn.convolution_and_pool import max_pool3d_with_indices as max_pool3d_with_indices
from oneflow.functional.nn.ctc import combined_margin_loss as combined_margin_loss
from oneflow.functional.nn.ctc import ctc_greedy_decoder as ctc_greedy_decoder
from oneflow.functional.nn.ctc import ctc_loss as ctc_loss
from oneflow.functional.nn.layers import batch_norm as batch_norm
from oneflow.functional.nn.layers import bilinear as bilinear
from oneflow.functional.nn.layers import channel_shuffle as channel_shuffle
from oneflow.functional.nn.layers import embedding as embedding
from oneflow.functional.nn.layers import instance_norm as instance_norm
from oneflow.functional.nn.layers import linear as linear
from oneflow.functional.nn.layers import local_response_norm as local_response_norm
from oneflow.functional.nn.layers import pad as pad
from oneflow.functional.nn.layers import pixel_shuffle as pixel_shuffle
from oneflow.functional.nn.layers import pixel_unshuffle as pixel_unshuffle
from oneflow.functional.nn.loss import binary_cross_entropy as binary_cross_entropy
from oneflow.functional.nn.loss import binary_cross_entropy_with_logits as binary_cross_entropy_with_logits
from oneflow.functional.nn.loss import cross_entropy as cross_entropy
from oneflow.functional.nn.loss import kl_div as kl_div
from oneflow.functional.nn.loss import l1_loss as l1_loss
from oneflow.functional.nn.loss import margin_ranking_loss as margin_ranking_loss
from oneflow.functional.nn.loss import mse_loss as mse_loss
from oneflow.functional.nn.loss import nll_loss as nll_loss
from oneflow.functional.nn.loss import smooth_l1_loss as smooth_l1_loss
from oneflow.functional.nn.loss import softmax_cross_entropy as softmax_cross_entropy
from oneflow.functional.nn.loss import triplet_margin_loss as triplet_margin_loss
from oneflow.functional.nn.lp_and_fractional_pool import fractional_max_pool2d as fractional_max_pool2d
from oneflow.functional.nn.lp_and_fractional_pool import fractional_max_pool2d_with_indices as fractional_max_pool2d_with_indices
from oneflow.functional.nn.lp_and_fractional_pool import fractional_max_pool3d as fractional_max_pool3d
from oneflow.functional.nn.lp_and_fractional_pool import fractional_max_pool3d_with_indices as fractional_max_pool3d_with_indices
from oneflow.functional.nn.lp_and_fractional_pool import lp_pool1d as lp_pool1d
from oneflow.functional.nn.lp_and_fractional_pool import lp_pool2d as lp_pool2d
from oneflow.functional.nn.lp_and_fractional_pool import lp_pool3d as lp_pool3d
from oneflow.functional.nn.margin_loss import cosine_embedding_loss as cosine_embedding_loss
from oneflow.functional.nn.margin_loss import gaussian_nll_loss as gaussian_nll_loss
from oneflow.functional.nn.margin_loss import hinge_embedding_loss as hinge_embedding_loss
from oneflow.functional.nn.margin_loss import huber_loss as huber_loss
from oneflow.functional.nn.margin_loss import multi_margin_loss as multi_margin_loss
from oneflow.functional.nn.margin_loss import multilabel_margin_loss as multilabel_margin_loss
from oneflow.functional.nn.margin_loss import multilabel_soft_margin_loss as multilabel_soft_margin_loss
from oneflow.functional.nn.margin_loss import poisson_nll_loss as poisson_nll_loss
from oneflow.functional.nn.margin_loss import soft_margin_loss as soft_margin_loss
from oneflow.functional.nn.margin_loss import triplet_margin_with_distance_loss as triplet_margin_with_distance_loss
from oneflow.functional.nn.max_pool import adaptive_max_pool1d as adaptive_max_pool1d
from oneflow.functional.nn.max_pool import adaptive_max_pool1d_with_indices as adaptive_max_pool1d_with_indices
from oneflow.functional.nn.max_pool import adaptive_max_pool2d as adaptive_max_pool2d
from oneflow.functional.nn.max_pool import adaptive_max_pool2d_with_indices as adaptive_max_pool2d_with_indices
from oneflow.functional.nn.max_pool import adaptive_max_pool3d as adaptive_max_pool3d
from oneflow.functional.nn.max_pool import adaptive_max_pool3d_with_indices as adaptive_max_pool3d_with_indices
from oneflow.functional.nn.max_pool import max_unpool1d as max_unpool1d
from oneflow.functional.nn.max_pool import max_unpool2d as max_unpool2d
from oneflow.functional.nn.max_pool import max_unpool3d as max_unpool3d
from oneflow.functional.nn.multi_head_attention import multi_head_attention_forward as multi_head_attention_forward
from oneflow.functional.nn.resize import interpolate as interpolate
from oneflow.functional.nn.resize import interpolate_like as interpolate_like
from oneflow.functional.nn.resize import upsample as upsample
from oneflow.functional.nn.resize import upsample_bilinear as upsample_bilinear
from oneflow.functional.nn.resize import upsample_nearest as upsample_nearest
from oneflow.functional.nn.sampling import affine_grid as affine_grid
from oneflow.functional.nn.sampling import deform_conv2d as deform_conv2d
from oneflow.functional.nn.sampling import grid_sample as grid_sample
from oneflow.functional.nn.sampling import nms as nms
from oneflow.functional.nn.sampling import roi_align as roi_align
from oneflow.functional.pointwise import bitwise_left_shift as bitwise_left_shift
from oneflow.functional.pointwise import bitwise_right_shift as bitwise_right_shift
from oneflow.functional.pointwise import copysign as copysign
from oneflow.functional.pointwise import deg2rad as deg2rad
from oneflow.functional.pointwise import fill as fill
from oneflow.functional.pointwise import float_power as float_power
from oneflow.functional.pointwise import fmax as fmax
from oneflow.functional.pointwise import fmin as fmin
from oneflow.functional.pointwise import frexp as frexp
from oneflow.functional.pointwise import gcd as gcd
from oneflow.functional.pointwise import heaviside as heaviside
from oneflow.functional.pointwise import hypot as hypot
from oneflow.functional.pointwise import is_same_size as is_same_size
from oneflow.functional.pointwise import isin as isin
from oneflow.functional.pointwise import isneginf as isneginf
from oneflow.functional.pointwise import isposinf as isposinf
from oneflow.functional.pointwise import lcm as lcm
from oneflow.functional.pointwise import ldexp as ldexp
from oneflow.functional.pointwise import logaddexp2 as logaddexp2
from oneflow.functional.pointwise import nextafter as nextafter
from oneflow.functional.pointwise import positive as positive
from oneflow.functional.pointwise import rad2deg as rad2deg
from oneflow.functional.promotion import get_default_dtype as get_default_dtype
from oneflow.functional.promotion import set_default_dtype as set_default_dtype
from oneflow.functional.properties import contiguous as contiguous
from oneflow.functional.properties import from_dlpack as from_dlpack
from oneflow.functional.properties import is_floating_point as is_floating_point
from oneflow.functional.properties import is_nonzero as is_nonzero
from oneflow.functional.properties import numel as numel
from oneflow.functional.properties import to_dlpack as to_dlpack
from oneflow.functional.random_state import Generator as Generator
from oneflow.functional.random_state import default_generator as default_generator
from oneflow.functional.random_state import get_rng_state as get_rng_state
from oneflow.functional.random_state import initial_seed as initial_seed
from oneflow.functional.random_state import manual_seed as manual_seed
from oneflow.functional.random_state import seed as seed
from oneflow.functional.random_state import set_rng_state as set_rng_state
from oneflow.functional.rearrange import addbmm as addbmm
from oneflow.functional.rearrange import addmv as addmv
from oneflow.functional.rearrange import addr as addr
from oneflow.functional.rearrange import alias_copy as alias_copy
from oneflow.functional.rearrange import as_strided_copy as as_strided_copy
from oneflow.functional.rearrange import block_diag as block_diag
from oneflow.functional.rearrange import cartesian_prod as cartesian_prod
from oneflow.functional.rearrange import chain_matmul as chain_matmul
from oneflow.functional.rearrange import combinations as combinations
from oneflow.functional.rearrange import conjugate_transpose as _rearrange_conjugate_transpose
from oneflow.functional.rearrange import diag_embed_dims as _rearrange_diag_embed_dims
from oneflow.functional.rearrange import diagflat as diagflat
from oneflow.functional.rearrange import diagonal_copy as diagonal_copy
from oneflow.functional.rearrange import dsplit as dsplit
from oneflow.functional.rearrange import expand_copy as expand_copy
from oneflow.functional.rearrange import fliplr as fliplr
from oneflow.functional.rearrange import flipud as flipud
from oneflow.functional.rearrange import inner as inner
from oneflow.functional.rearrange import kron as kron
from oneflow.functional.rearrange import msort as msort
from oneflow.functional.rearrange import multi_dot as multi_dot
from oneflow.functional.rearrange import narrow_copy as narrow_copy
from oneflow.functional.rearrange import permute_copy as permute_copy
from oneflow.functional.rearrange import ravel as ravel
from oneflow.functional.rearrange import rot90 as rot90
from oneflow.functional.rearrange import squeeze_copy as squeeze_copy
from oneflow.functional.rearrange import sum_to_size as sum_to_size
from oneflow.functional.rearrange import t_copy as t_copy
from oneflow.functional.rearrange import transpose_copy as transpose_copy
from oneflow.functional.rearrange import tril_indices as tril_indices
from oneflow.functional.rearrange import triu_indices as triu_indices
from oneflow.functional.rearrange import unfold_copy as unfold_copy
from oneflow.functional.rearrange import unravel_index as unravel_index
from oneflow.functional.rearrange import unsafe_chunk as unsafe_chunk
from oneflow.functional.rearrange import unsafe_split as unsafe_split
from oneflow.functional.rearrange import unsqueeze_copy as unsqueeze_copy
from oneflow.functional.rearrange import vander as vander
from oneflow.functional.rearrange import vdot as vdot
from oneflow.functional.rearrange import view_copy as view_copy
from oneflow.functional.reduction import allclose as allclose
from oneflow.functional.reduction import dist as dist
from oneflow.functional.reduction import equal as equal
from oneflow.functional.reduction import reduce_sum_like as reduce_sum_like
from oneflow.functional.reduction import trace as trace
from oneflow.functional.shaping import atleast_1d as atleast_1d
from oneflow.functional.shaping import atleast_2d as atleast_2d
from oneflow.functional.shaping import atleast_3d as atleast_3d
from oneflow.functional.shaping import broadcast_like as broadcast_like
from oneflow.functional.shaping import broadcast_shapes as broadcast_shapes
from oneflow.functional.shaping import broadcast_tensors as broadcast_tensors
from oneflow.functional.shaping import broadcast_to as broadcast_to
from oneflow.functional.shaping import diag as diag
from oneflow.functional.shaping import diagonal as diagonal
from oneflow.functional.shaping import expand as expand
from oneflow.functional.shaping import expand_as as expand_as
from oneflow.functional.shaping import flatten as flatten
from oneflow.functional.shaping import flip as flip
from oneflow.functional.shaping import meshgrid as meshgrid
from oneflow.functional.shaping import movedim as _shaping_movedim
from oneflow.functional.shaping import movedim as movedim
from oneflow.functional.shaping import permute as permute
from oneflow.functional.shaping import repeat as repeat
from oneflow.functional.shaping import reshape as reshape
from oneflow.functional.shaping import reshape_as as _shaping_reshape_as
from oneflow.functional.shaping import reshape_as as reshape_as
from oneflow.functional.shaping import roll as roll
from oneflow.functional.shaping import swapaxes as swapaxes
from oneflow.functional.shaping import swapdims as swapdims
from oneflow.functional.shaping import t as t
from oneflow.functional.shaping import tile as tile
from oneflow.functional.shaping import transpose as transpose
from oneflow.functional.shaping import tril as tril
from oneflow.functional.shaping import triu as triu
from oneflow.functional.shaping import view_as as view_as
from oneflow.functional.sort_and_search import argwhere as argwhere
from oneflow.functional.sort_and_search import bincount as bincount
from oneflow.functional.sort_and_search import in_top_k as in_top_k
from oneflow.functional.sort_and_search import masked_select as masked_select
from oneflow.functional.sort_and_search import multinomial as multinomial
from oneflow.functional.sort_and_search import nonzero as nonzero
from oneflow.functional.sort_and_search import one_hot as one_hot
from oneflow.functional.sort_and_search import searchsorted as searchsorted
from oneflow.functional.sort_and_search import where as where
from oneflow.functional.special import chebyshev_polynomial_t as chebyshev_polynomial_t
from oneflow.functional.special import chebyshev_polynomial_u as chebyshev_polynomial_u
from oneflow.functional.special import chebyshev_polynomial_v as chebyshev_polynomial_v
from oneflow.functional.special import chebyshev_polynomial_w as chebyshev_polynomial_w
from oneflow.functional.special import digamma as _special_digamma
from oneflow.functional.special import digamma as digamma
from oneflow.functional.special import entr as entr
from oneflow.functional.special import erfcx as erfcx
from oneflow.functional.special import expit as expit
from oneflow.functional.special import gammaln as gammaln
from oneflow.functional.special import hermite_polynomial_h as hermite_polynomial_h
from oneflow.functional.special import hermite_polynomial_he as hermite_polynomial_he
from oneflow.functional.special import igamma as _special_igamma
from oneflow.functional.special import igamma as igamma
from oneflow.functional.special import igammac as _special_igammac
from oneflow.functional.special import igammac as igammac
from oneflow.functional.special import laguerre_polynomial_l as laguerre_polynomial_l
from oneflow.functional.special import legendre_polynomial_p as legendre_polynomial_p
from oneflow.functional.special import log_ndtr as log_ndtr
from oneflow.functional.special import multigammaln as _special_multigammaln
from oneflow.functional.special import multigammaln as multigammaln
from oneflow.functional.special import ndtr as ndtr
from oneflow.functional.special import ndtri as ndtri
from oneflow.functional.special import polygamma as polygamma
from oneflow.functional.special import shifted_chebyshev_polynomial_t as shifted_chebyshev_polynomial_t
from oneflow.functional.special import shifted_chebyshev_polynomial_u as shifted_chebyshev_polynomial_u
from oneflow.functional.special import shifted_chebyshev_polynomial_v as shifted_chebyshev_polynomial_v
from oneflow.functional.special import shifted_chebyshev_polynomial_w as shifted_chebyshev_polynomial_w
from oneflow.functional.special import sinc as sinc
from oneflow.functional.special import xlog1py as xlog1py
from oneflow.functional.special import xlogy as xlogy
from oneflow.functional.special import zeta as zeta
from oneflow.functional.statistics import aminmax_result
from oneflow.functional.statistics import bucketize as bucketize
from oneflow.functional.statistics import cdist as cdist
from oneflow.functional.statistics import corrcoef as corrcoef
from oneflow.functional.statistics import cov as cov
from oneflow.functional.statistics import cummax_result
from oneflow.functional.statistics import cummin_result
from oneflow.functional.statistics import histc as histc
from oneflow.functional.statistics import histogram as histogram
from oneflow.functional.statistics import pdist as pdist
from oneflow.functional.strides import as_strided as as_strided
from oneflow.functional.strides import as_strided_scatter as as_strided_scatter
from oneflow.functional.strides import fold as fold
from oneflow.functional.strides import unfold as unfold
from oneflow.functional.switches import _assert as _assert
from oneflow.functional.switches import _log_api_usage_once as _log_api_usage_once
from oneflow.functional.switches import are_deterministic_algorithms_enabled as are_deterministic_algorithms_enabled
from oneflow.functional.switches import get_default_device as get_default_device
from oneflow.functional.switches import is_deterministic_algorithms_warn_only_enabled as is_deterministic_algorithms_warn_only_enabled
from oneflow.functional.switches import set_default_tensor_type as set_default_tensor_type
from oneflow.functional.switches import set_num_threads as set_num_threads
from oneflow.functional.switches import use_deterministic_algorithms as use_deterministic_algorithms
from oneflow.functional.window_functions import bartlett_window as bartlett_window
from oneflow.functional.window_functions import blackman_window as blackman_window
from oneflow.functional.window_functions import hamming_window as hamming_window
from oneflow.functional.window_functions import hann_window as hann_window
from oneflow.functional.window_functions import kaiser_window as kaiser_window
from oneflow.nn.modules.ranks import distributed_partial_fc_sample as distributed_partial_fc_sample
from oneflow.nn.modules.recurrent_calls import gru as gru
from oneflow.nn.modules.recurrent_calls import lstm as lstm
from oneflow.nn.modules.recurrent_calls import pack_padded_sequence as pack_padded_sequence
from oneflow.nn.modules.recurrent_calls import rnn_relu as rnn_relu
from oneflow.nn.modules.recurrent_calls import rnn_tanh as rnn_tanh
from oneflow.tensor.tensor import Tensor
from typing import Any
import builtins

__rdiv__ = _native_functions_rdiv
_cdata = _small_cdata
_legacy_tensor_ctor = _from_data_legacy_tensor
def _log_softmax_backward_data(grad_output: Tensor, output: Tensor, dim: builtins.int, input_dtype: DTypeLike, *, axis: builtins.int = ...) -> Tensor: ...
_segment_reduce = _small_segment_reduce
def _softmax_backward_data(grad_output: Tensor, output: Tensor, dim: builtins.int, input_dtype: DTypeLike, *, axis: builtins.int = ...) -> Tensor: ...
def abs_(input: Tensor) -> Tensor: ...
absolute = _complex_numbers_abs
def absolute_(input: Tensor) -> Tensor: ...
def acos(input: Tensor) -> Tensor: ...
def acos_(input: Tensor) -> Tensor: ...
def acosh(input: Tensor) -> Tensor: ...
def acosh_(input: Tensor) -> Tensor: ...
def add_(input: TensorLike, other: TensorLike, *, alpha: Number = ..., inplace: builtins.bool = ..., out: Tensor | None = ...) -> Tensor: ...
def addbmm_(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: builtins.float = ..., alpha: builtins.float = ...) -> Tensor: ...
def addcdiv_(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Number = ...) -> Tensor: ...
def addcmul_(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Number = ...) -> Tensor: ...
def addmm_(input: Tensor, mat1: Tensor, mat2: Tensor, alpha: Number = ..., beta: Number = ...) -> Tensor: ...
def addmv_(input: Tensor, mat: Tensor, vec: Tensor, *, beta: builtins.float = ..., alpha: builtins.float = ...) -> Tensor: ...
def addr_(input: Tensor, vec1: Tensor, vec2: Tensor, *, beta: builtins.float = ..., alpha: builtins.float = ...) -> Tensor: ...
adjoint = _rearrange_conjugate_transpose
def airy_ai(input: Tensor) -> Tensor: ...
def all(input: Tensor, dim: DimLike = ..., keepdim: builtins.bool = ..., *, axis: DimLike = ..., keepdims: builtins.bool = ...) -> Tensor: ...
def amax(input: Tensor, dim: DimLike = ..., keepdim: builtins.bool = ..., *, axis: DimLike = ..., keepdims: builtins.bool = ...) -> Tensor: ...
def amin(input: Tensor, dim: DimLike = ..., keepdim: builtins.bool = ..., *, axis: DimLike = ..., keepdims: builtins.bool = ...) -> Tensor: ...
def aminmax(input: Tensor, *, dim: builtins.int | None = ..., keepdim: builtins.bool = ..., axis: builtins.int | None = ..., keepdims: builtins.bool = ...) -> aminmax_result: ...
def any(input: Tensor, dim: DimLike = ..., keepdim: builtins.bool = ..., *, axis: DimLike = ..., keepdims: builtins.bool = ...) -> Tensor: ...
def arccos(input: Tensor) -> Tensor: ...
def arccos_(input: Tensor) -> Tensor: ...
def arccosh(input: Tensor) -> Tensor: ...
def arccosh_(input: Tensor) -> Tensor: ...
def arcsin(input: Tensor) -> Tensor: ...
def arcsin_(input: Tensor) -> Tensor: ...
def arcsinh(input: Tensor) -> Tensor: ...
def arcsinh_(input: Tensor) -> Tensor: ...
def arctan(input: Tensor) -> Tensor: ...
arctan2 = _arithmetic_atan2
def arctan2_(input: TensorLike, other: TensorLike) -> Tensor: ...
def arctan_(input: Tensor) -> Tensor: ...
def arctanh(input: Tensor) -> Tensor: ...
def arctanh_(input: Tensor) -> Tensor: ...
def argmax(input: Tensor, dim: builtins.int | None = ..., keepdim: builtins.bool = ..., dtype: DTypeLike | None = ..., *, axis: builtins.int | None = ..., keepdims: builtins.bool = ...) -> Tensor: ...
def argmin(input: Tensor, dim: builtins.int | None = ..., keepdim: builtins.bool = ..., dtype: DTypeLike | None = ..., *, axis: builtins.int | None = ..., keepdims: builtins.bool = ...) -> Tensor: ...
def argsort(input: Tensor, dim: builtins.int = ..., descending: builtins.bool = ..., stable: builtins.bool = ..., *, axis: builtins.int = ...) -> Tensor: ...
def asin(input: Tensor) -> Tensor: ...
def asin_(input: Tensor) -> Tensor: ...
def asinh(input: Tensor) -> Tensor: ...
def asinh_(input: Tensor) -> Tensor: ...
def atan(input: Tensor) -> Tensor: ...
def atan2_(input: TensorLike, other: TensorLike) -> Tensor: ...
def atan_(input: Tensor) -> Tensor: ...
def atanh(input: Tensor) -> Tensor: ...
def atanh_(input: Tensor) -> Tensor: ...
def baddbmm_(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Number = ..., alpha: Number = ...) -> Tensor: ...
def bernoulli_(input: Tensor, p: builtins.float | None = ..., *, generator: Generator | None = ..., dtype: DTypeLike | None = ..., inplace: builtins.bool = ...) -> Tensor: ...
def bessel_j0(input: Tensor) -> Tensor: ...
def bessel_j1(input: Tensor) -> Tensor: ...
def bessel_y0(input: Tensor) -> Tensor: ...
def bessel_y1(input: Tensor) -> Tensor: ...
bfloat16 = _methods_to_bfloat16
def bitwise_and(input: TensorLike, other: TensorLike) -> Tensor: ...
def bitwise_and_(input: TensorLike, other: TensorLike) -> Tensor: ...
def bitwise_left_shift_(input: TensorLike, other: TensorLike) -> Tensor: ...
def bitwise_not(input: Tensor) -> Tensor: ...
def bitwise_not_(input: Tensor) -> Tensor: ...
def bitwise_or(input: TensorLike, other: TensorLike) -> Tensor: ...
def bitwise_or_(input: TensorLike, other: TensorLike) -> Tensor: ...
def bitwise_right_shift_(input: TensorLike, other: TensorLike) -> Tensor: ...
def bitwise_xor(input: TensorLike, other: TensorLike) -> Tensor: ...
def bitwise_xor_(input: TensorLike, other: TensorLike) -> Tensor: ...
bool = _methods_to_bool
def broadcast_dim_like(x: Tensor, like: Tensor, dim: builtins.int, like_dim: builtins.int | None = ..., *, axis: builtins.int = ...) -> Tensor: ...
broadcast_equal = _arithmetic_eq
byte = _methods_to_uint8
def cat(tensors: Sequence[Tensor], dim: builtins.int = ..., *, axis: builtins.int = ...) -> Tensor: ...
def ceil(input: Tensor) -> Tensor: ...
def ceil_(input: Tensor) -> Tensor: ...
def celu(input: Tensor, alpha: builtins.float = 1.0, inplace: builtins.bool = False) -> Tensor: ...
def celu_(input: Tensor, alpha: builtins.float = 1.0, inplace: builtins.bool = False) -> Tensor: ...
char = _methods_to_int8
cholesky = _matrices_cholesky_method
def chunk(input: Tensor, chunks: builtins.int, dim: builtins.int = ..., *, axis: builtins.int = ...) -> tuple[Tensor, ...]: ...
def clamp_(input: Tensor, min: Number | Tensor | None = ..., max: Number | Tensor | None = ...) -> Tensor: ...
def clamp_max_(input: Tensor, max: Number | Tensor) -> Tensor: ...
def clamp_min_(input: Tensor, min: Number | Tensor) -> Tensor: ...
clip = _elementwise_clamp
def clip_(input: Tensor, min: Number | Tensor | None = ..., max: Number | Tensor | None = ...) -> Tensor: ...
complex = _complex_numbers_make
def concat(tensors: Sequence[Tensor], dim: builtins.int = ..., *, axis: builtins.int = ...) -> Tensor: ...
def concatenate(tensors: Sequence[Tensor], dim: builtins.int = ..., *, axis: builtins.int = ...) -> Tensor: ...
def conj_physical_(input: Tensor) -> Tensor: ...
def copysign_(input: Tensor, other: TensorLike) -> Tensor: ...
def cos(input: Tensor) -> Tensor: ...
def cos_(input: Tensor) -> Tensor: ...
def cosh(input: Tensor) -> Tensor: ...
def cosh_(input: Tensor) -> Tensor: ...
def cosine_similarity(x1: Tensor, x2: Tensor, dim: builtins.int = ..., eps: builtins.float = ..., *, axis: builtins.int = ...) -> Tensor: ...
def count_nonzero(input: Tensor, dim: DimLike = ..., *, axis: DimLike = ...) -> Tensor: ...
def cross(input: Tensor, other: Tensor, dim: builtins.int | None = ..., *, axis: builtins.int | None = ...) -> Tensor: ...
def cummax(input: Tensor, dim: builtins.int, *, axis: builtins.int = ...) -> cummax_result: ...
def cummin(input: Tensor, dim: builtins.int, *, axis: builtins.int = ...) -> cummin_result: ...
def cumprod(input: Tensor, dim: builtins.int, *, dtype: DTypeLike | None = ..., axis: builtins.int = ...) -> Tensor: ...
def cumprod_(input: Tensor, dim: builtins.int, *, dtype: DTypeLike | None = ..., axis: builtins.int = ...) -> Tensor: ...
def cumsum(input: Tensor, dim: builtins.int, *, dtype: DTypeLike | None = ..., axis: builtins.int = ...) -> Tensor: ...
def cumsum_(input: Tensor, dim: builtins.int, *, dtype: DTypeLike | None = ..., axis: builtins.int = ...) -> Tensor: ...
def cumulative_trapezoid(y: Tensor, x: Tensor | None = ..., *, dx: builtins.float | None = ..., dim: builtins.int = ..., axis: builtins.int = ...) -> Tensor: ...
def deg2rad_(input: Tensor) -> Tensor: ...
diag_embed = _rearrange_diag_embed_dims
def diff(input: Tensor, n: builtins.int = ..., dim: builtins.int = ..., prepend: Tensor | None = ..., append: Tensor | None = ..., *, axis: builtins.int = ...) -> Tensor: ...
def digamma_(input: Tensor) -> Tensor: ...
def dim_gather(input: Tensor, dim: builtins.int, index: Tensor, sparse_grad: builtins.bool = ..., *, axis: builtins.int = ...) -> Tensor: ...
def div_(input: TensorLike, other: TensorLike, *, rounding_mode: str | None = ...) -> Tensor: ...
divide = _arithmetic_div
def divide_(input: TensorLike, other: TensorLike, *, rounding_mode: str | None = ...) -> Tensor: ...
double = _methods_to_float64
def dropout_(input: Tensor, p: builtins.float = ..., training: builtins.bool = ..., inplace: builtins.bool = ..., generator: Generator | None = ..., *, addend: Tensor | None = ...) -> Tensor: ...
def elu(input: Tensor, alpha: builtins.float = 1.0, inplace: builtins.bool = False) -> Tensor: ...
def elu_(input: Tensor, alpha: builtins.float = 1.0, inplace: builtins.bool = False) -> Tensor: ...
def eq_(input: TensorLike, other: TensorLike) -> Tensor: ...
def erf(input: Tensor) -> Tensor: ...
def erf_(input: Tensor) -> Tensor: ...
def erfc(input: Tensor) -> Tensor: ...
def erfc_(input: Tensor) -> Tensor: ...
def erfinv(input: Tensor) -> Tensor: ...
def erfinv_(input: Tensor) -> Tensor: ...
def exp(input: Tensor) -> Tensor: ...
def exp2(input: Tensor) -> Tensor: ...
def exp2_(input: Tensor) -> Tensor: ...
def exp_(input: Tensor) -> Tensor: ...
def expand_dims(input: Tensor, dim: builtins.int, *, axis: builtins.int = ...) -> Tensor: ...
def expm1(input: Tensor) -> Tensor: ...
def expm1_(input: Tensor) -> Tensor: ...
def fftshift(input: Tensor, dim: Dims = ..., *, axis: Dims = ...) -> Tensor: ...
def fill_(input: Tensor, value: Tensor | Number) -> Tensor: ...
def fix(input: Tensor) -> Tensor: ...
def fix_(input: Tensor) -> Tensor: ...
float = _methods_to_float32
def float_power_(input: TensorLike, exponent: TensorLike) -> Tensor: ...
def floor(input: Tensor) -> Tensor: ...
def floor_(input: Tensor) -> Tensor: ...
def floor_divide_(input: TensorLike, other: TensorLike) -> Tensor: ...
def fmod_(input: TensorLike, other: TensorLike, *, inplace: builtins.bool = ...) -> Tensor: ...
def frac_(input: Tensor) -> Tensor: ...
gammainc = _special_igamma
gammaincc = _special_igammac
def gcd_(input: Tensor, other: Tensor) -> Tensor: ...
def ge_(input: TensorLike, other: TensorLike) -> Tensor: ...
def gelu(input: Tensor, approximate: str = 'none') -> Tensor: ...
ger = _products_outer
def glu(input: Tensor, dim: builtins.int = ..., *, axis: builtins.int = ...) -> Tensor: ...
def gradient(input: Tensor, *, spacing: builtins.float | Tensor | Sequence[builtins.float | Tensor] | None = ..., dim: DimLike = ..., edge_order: builtins.int = ..., axis: DimLike = ...) -> tuple[Tensor, ...]: ...
greater = _arithmetic_gt
def greater_(input: TensorLike, other: TensorLike) -> Tensor: ...
greater_equal = _arithmetic_ge
def greater_equal_(input: TensorLike, other: TensorLike) -> Tensor: ...
grid_sampler_2d = _native_functions_grid_sampler
grid_sampler_3d = _native_functions_grid_sampler
def gt_(input: TensorLike, other: TensorLike) -> Tensor: ...
def gumbel_softmax(logits: Tensor, tau: builtins.float | Tensor = ..., dim: builtins.int = ..., hard: builtins.bool = ..., *, eps: builtins.float = ..., generator: Generator | None = ..., axis: builtins.int = ...) -> Tensor: ...
half = _methods_to_float16
def hardshrink(input: Tensor, lambd: builtins.float = 0.5, inplace: builtins.bool = False) -> Tensor: ...
def hardsigmoid(input: Tensor, inplace: builtins.bool = False) -> Tensor: ...
def hardswish(input: Tensor, inplace: builtins.bool = False) -> Tensor: ...
def hardtanh(input: Tensor, min_val: Number = -1.0, max_val: Number = 1.0, inplace: builtins.bool = False, *, min_value: Number = ..., max_value: Number = ...) -> Tensor: ...
def hardtanh_(input: Tensor, min_val: Number = -1.0, max_val: Number = 1.0, inplace: builtins.bool = False, *, min_value: Number = ..., max_value: Number = ...) -> Tensor: ...
def hash_tensor(input: Tensor, dim: DimLike = ..., *, keepdim: builtins.bool = ..., mode: builtins.int = ..., axis: DimLike = ..., keepdims: builtins.bool = ...) -> Tensor: ...
def heaviside_(input: Tensor, values: Tensor) -> Tensor: ...
def hypot_(input: Tensor, other: Tensor) -> Tensor: ...
def i0(input: Tensor) -> Tensor: ...
def i0_(input: Tensor) -> Tensor: ...
def i0e(input: Tensor) -> Tensor: ...
def i1(input: Tensor) -> Tensor: ...
def i1e(input: Tensor) -> Tensor: ...
def ifftshift(input: Tensor, dim: Dims = ..., *, axis: Dims = ...) -> Tensor: ...
def igamma_(input: Tensor, other: Tensor) -> Tensor: ...
def igammac_(input: Tensor, other: Tensor) -> Tensor: ...
def index_add(input: Tensor, dim: builtins.int, index: Tensor, source: Tensor, *, alpha: Number = ..., axis: builtins.int = ...) -> Tensor: ...
def index_add_(input: Tensor, dim: builtins.int, index: Tensor, source: Tensor, *, alpha: Number = ..., axis: builtins.int = ...) -> Tensor: ...
def index_copy(input: Tensor, dim: builtins.int, index: Tensor, source: Tensor, *, axis: builtins.int = ...) -> Tensor: ...
def index_copy_(input: Tensor, dim: builtins.int, index: Tensor, source: Tensor, *, axis: builtins.int = ...) -> Tensor: ...
def index_fill(input: Tensor, dim: builtins.int, index: Tensor, value: Tensor | Number, *, axis: builtins.int = ...) -> Tensor: ...
def index_fill_(input: Tensor, dim: builtins.int, index: Tensor, value: Tensor | Number, *, axis: builtins.int = ...) -> Tensor: ...
def index_put_(input: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: builtins.bool = ...) -> Tensor: ...
def index_reduce(input: Tensor, dim: builtins.int, index: Tensor, source: Tensor, reduce: str, *, include_self: builtins.bool = ..., axis: builtins.int = ...) -> Tensor: ...
def index_reduce_(input: Tensor, dim: builtins.int, index: Tensor, source: Tensor, reduce: str, *, include_self: builtins.bool = ..., axis: builtins.int = ...) -> Tensor: ...
def index_select(input: Tensor, dim: builtins.int, index: Tensor, *, axis: builtins.int = ...) -> Tensor: ...
int = _methods_to_int32
inverse = _matrices_inv
is_neg = _complex_numbers_is_conj
def isfinite(input: Tensor) -> Tensor: ...
def isinf(input: Tensor) -> Tensor: ...
def isnan(input: Tensor) -> Tensor: ...
def kthvalue(input: Tensor, k: builtins.int, dim: builtins.int = ..., keepdim: builtins.bool = ..., *, axis: builtins.int = ..., keepdims: builtins.bool = ...) -> Any: ...
def lcm_(input: Tensor, other: Tensor) -> Tensor: ...
def ldexp_(input: Tensor, other: TensorLike) -> Tensor: ...
def le_(input: TensorLike, other: TensorLike) -> Tensor: ...
def leaky_relu(input: Tensor, negative_slope: builtins.float = 0.01, inplace: builtins.bool = False, *, alpha: builtins.float = ...) -> Tensor: ...
def leaky_relu_(input: Tensor, negative_slope: builtins.float = 0.01, inplace: builtins.bool = False, *, alpha: builtins.float = ...) -> Tensor: ...
def lerp_(start: Tensor, end: Tensor, weight: TensorLike) -> Tensor: ...
less = _arithmetic_lt
def less_(input: TensorLike, other: TensorLike) -> Tensor: ...
less_equal = _arithmetic_le
def less_equal_(input: TensorLike, other: TensorLike) -> Tensor: ...
def lgamma(input: Tensor) -> Tensor: ...
def lgamma_(input: Tensor) -> Tensor: ...
def linalg_cross(input: Tensor, other: Tensor, dim: builtins.int | None = ..., *, axis: builtins.int | None = ...) -> Tensor: ...
def log(input: Tensor) -> Tensor: ...
def log10(input: Tensor) -> Tensor: ...
def log10_(input: Tensor) -> Tensor: ...
def log1p(input: Tensor) -> Tensor: ...
def log1p_(input: Tensor) -> Tensor: ...
def log2(input: Tensor) -> Tensor: ...
def log2_(input: Tensor) -> Tensor: ...
def log_(input: Tensor) -> Tensor: ...
def log_softmax(input: Tensor, dim: builtins.int | None = ..., dtype: DTypeLike | None = ..., *, axis: builtins.int | None = ...) -> Tensor: ...
def logcumsumexp(input: Tensor, dim: builtins.int, *, axis: builtins.int = ...) -> Tensor: ...
def logical_and(input: TensorLike, other: TensorLike) -> Tensor: ...
def logical_and_(input: TensorLike, other: TensorLike) -> Tensor: ...
def logical_not(input: Tensor) -> Tensor: ...
def logical_not_(input: Tensor) -> Tensor: ...
def logical_or(input: TensorLike, other: TensorLike) -> Tensor: ...
def logical_or_(input: TensorLike, other: TensorLike) -> Tensor: ...
def logical_xor(input: TensorLike, other: TensorLike) -> Tensor: ...
def logical_xor_(input: TensorLike, other: TensorLike) -> Tensor: ...
def logit(input: Tensor, eps: builtins.float | None = None) -> Tensor: ...
def logit_(input: Tensor, eps: builtins.float | None = None) -> Tensor: ...
def logsigmoid(input: Tensor) -> Tensor: ...
def logsumexp(input: Tensor, dim: DimLike, keepdim: builtins.bool = ..., *, axis: DimLike = ..., keepdims: builtins.bool = ...) -> Tensor: ...
long = _methods_to_int64
def lt_(input: TensorLike, other: TensorLike) -> Tensor: ...
lu = _packed_factors_lu_packed
lu_solve = _packed_factors_lu_solve_of
def masked_fill_(input: Tensor, mask: Tensor, value: Number | Tensor) -> Tensor: ...
def masked_scatter_(input: Tensor, mask: Tensor, source: Tensor) -> Tensor: ...
def matrix_norm(input: Tensor, ord: builtins.float | str = ..., dim: DimLike = ..., keepdim: builtins.bool = ..., *, dtype: DTypeLike | None = ..., axis: DimLike = ..., keepdims: builtins.bool = ...) -> Tensor: ...
def max(input: Tensor, dim: builtins.int | Tensor | None = ..., keepdim: builtins.bool = ..., *, other: TensorLike | None = ..., axis: builtins.int | Tensor | None = ..., keepdims: builtins.bool = ...) -> Any: ...
def maximum(input: Tensor, other: Tensor) -> Tensor: ...
def mean(input: Tensor, dim: DimLike = ..., keepdim: builtins.bool = ..., *, dtype: DTypeLike | None = ..., axis: DimLike = ..., keepdims: builtins.bool = ...) -> Tensor: ...
def median(input: Tensor, dim: builtins.int | None = ..., keepdim: builtins.bool = ..., *, axis: builtins.int | None = ..., keepdims: builtins.bool = ...) -> Any: ...
def min(input: Tensor, dim: builtins.int | Tensor | None = ..., keepdim: builtins.bool = ..., *, other: TensorLike | None = ..., axis: builtins.int | Tensor | None = ..., keepdims: builtins.bool = ...) -> Any: ...
def minimum(input: Tensor, other: Tensor) -> Tensor: ...
def mish(input: Tensor, inplace: builtins.bool = False) -> Tensor: ...
def mode(input: Tensor, dim: builtins.int = ..., keepdim: builtins.bool = ..., *, axis: builtins.int = ..., keepdims: builtins.bool = ...) -> Any: ...
def modified_bessel_i0(input: Tensor) -> Tensor: ...
def modified_bessel_i1(input: Tensor) -> Tensor: ...
def modified_bessel_k0(input: Tensor) -> Tensor: ...
def modified_bessel_k1(input: Tensor) -> Tensor: ...
moveaxis = _shaping_movedim
def mul_(input: TensorLike, other: TensorLike, *, inplace: builtins.bool = ..., out: Tensor | None = ...) -> Tensor: ...
multiply = _arithmetic_mul
def multiply_(input: TensorLike, other: TensorLike, *, inplace: builtins.bool = ..., out: Tensor | None = ...) -> Tensor: ...
mvlgamma = _special_multigammaln
def mvlgamma_(input: Tensor, p: builtins.int) -> Tensor: ...
def nan_to_num_(input: Tensor, nan: builtins.float = ..., posinf: builtins.float | None = ..., neginf: builtins.float | None = ...) -> Tensor: ...
def nanmean(input: Tensor, dim: DimLike = ..., keepdim: builtins.bool = ..., *, dtype: DType | None = ..., axis: DimLike = ..., keepdims: builtins.bool = ...) -> Tensor: ...
def nanmedian(input: Tensor, dim: builtins.int | None = ..., keepdim: builtins.bool = ..., *, axis: builtins.int | None = ..., keepdims: builtins.bool = ...) -> object: ...
def nanquantile(input: Tensor, q: builtins.float | Tensor, dim: builtins.int | None = ..., keepdim: builtins.bool = ..., *, interpolation: str = ..., axis: builtins.int | None = ..., keepdims: builtins.bool = ...) -> Tensor: ...
def nansum(input: Tensor, dim: DimLike = ..., keepdim: builtins.bool = ..., *, dtype: DTypeLike | None = ..., axis: DimLike = ..., keepdims: builtins.bool = ...) -> Tensor: ...
def narrow(input: Tensor, dim: builtins.int, start: builtins.int | Tensor, length: builtins.int, *, axis: builtins.int = ...) -> Tensor: ...
ndimension = _methods_dim
def ne_(input: TensorLike, other: TensorLike) -> Tensor: ...
def neg(input: Tensor) -> Tensor: ...
def neg_(input: Tensor) -> Tensor: ...
def negative(input: Tensor) -> Tensor: ...
def negative_(input: Tensor) -> Tensor: ...
nelement = _methods_numel
def nextafter_(input: Tensor, other: Tensor) -> Tensor: ...
def norm(input: Tensor, p: builtins.float | str | None = ..., dim: DimLike = ..., keepdim: builtins.bool = ..., dtype: DTypeLike | None = ..., *, ord: builtins.float | str | None = ..., axis: DimLike = ..., keepdims: builtins.bool = ...) -> Tensor: ...
def normalize(input: Tensor, p: builtins.float = ..., dim: builtins.int = ..., eps: builtins.float | Tensor = ..., *, axis: builtins.int = ...) -> Tensor: ...
not_equal = _arithmetic_ne
def not_equal_(input: TensorLike, other: TensorLike) -> Tensor: ...
orgqr = _packed_factors_householder_product
def pairwise_distance(x1: Tensor, x2: Tensor, p: builtins.float = ..., eps: builtins.float = ..., keepdim: builtins.bool = ..., *, keepdims: builtins.bool = ...) -> Tensor: ...
pinverse = _matrices_pinv
def polygamma_(input: Tensor, n: builtins.int) -> Tensor: ...
def pow_(input: TensorLike, exponent: TensorLike, *, inplace: builtins.bool = ...) -> Tensor: ...
def prelu(input: Tensor, weight: Tensor, *, alpha: Tensor = ...) -> Tensor: ...
def prod(input: Tensor, dim: DimLike = ..., keepdim: builtins.bool = ..., *, dtype: DTypeLike | None = ..., axis: DimLike = ..., keepdims: builtins.bool = ...) -> Tensor: ...
psi = _special_digamma
def put_(input: Tensor, index: Tensor, source: Tensor, accumulate: builtins.bool = ...) -> Tensor: ...
qr = _matrices_qr_of
def quantile(input: Tensor, q: builtins.float | Tensor, dim: builtins.int | None = ..., keepdim: builtins.bool = ..., *, interpolation: str = ..., axis: builtins.int | None = ..., keepdims: builtins.bool = ...) -> Tensor: ...
def quick_gelu(input: Tensor) -> Tensor: ...
def rad2deg_(input: Tensor) -> Tensor: ...
def reciprocal(input: Tensor) -> Tensor: ...
def reciprocal_(input: Tensor) -> Tensor: ...
def reduce_all(x: Tensor, dim: Axes = ..., keepdim: builtins.bool = ..., *, axis: Axes = ..., keepdims: builtins.bool = ...) -> Tensor: ...
def reduce_any(x: Tensor, dim: Axes = ..., keepdim: builtins.bool = ..., *, axis: Axes = ..., keepdims: builtins.bool = ...) -> Tensor: ...
def reduce_mean(x: Tensor, dim: Axes = ..., keepdim: builtins.bool = ..., *, axis: Axes = ..., keepdims: builtins.bool = ...) -> Tensor: ...
def reduce_nansum(x: Tensor, dim: Axes = ..., keepdim: builtins.bool = ..., *, dtype: DTypeLike | None = ..., axis: Axes = ..., keepdims: builtins.bool = ...) -> Tensor: ...
def reduce_prod(x: Tensor, dim: Axes = ..., keepdim: builtins.bool = ..., *, dtype: DTypeLike | None = ..., axis: Axes = ..., keepdims: builtins.bool = ...) -> Tensor: ...
def reduce_sum(x: Tensor, dim: Axes = ..., keepdim: builtins.bool = ..., *, dtype: DTypeLike | None = ..., axis: Axes = ..., keepdims: builtins.bool = ...) -> Tensor: ...
def relu(input: Tensor, inplace: builtins.bool = False) -> Tensor: ...
def relu6(input: Tensor, inplace: builtins.bool = False) -> Tensor: ...
def relu_(input: Tensor, inplace: builtins.bool = False) -> Tensor: ...
def remainder_(input: TensorLike, other: TensorLike) -> Tensor: ...
def renorm(input: Tensor, p: builtins.float, dim: builtins.int, maxnorm: builtins.float, *, axis: builtins.int = ...) -> Tensor: ...
def renorm_(input: Tensor, p: builtins.float, dim: builtins.int, maxnorm: builtins.float, *, axis: builtins.int = ...) -> Tensor: ...
def repeat_interleave(input: Tensor, repeats: builtins.int | Tensor, dim: builtins.int | None = ..., *, output_size: builtins.int | None = ..., axis: builtins.int | None = ...) -> Tensor: ...
reshape_like = _shaping_reshape_as
resolve_conj = _complex_numbers_resolve
resolve_neg = _complex_numbers_resolve
def round_(input: Tensor, *, decimals: builtins.int = ...) -> Tensor: ...
def rrelu_(input: Tensor, lower: builtins.float = ..., upper: builtins.float = ..., training: builtins.bool = ..., inplace: builtins.bool = ...) -> Tensor: ...
def rsqrt(input: Tensor) -> Tensor: ...
def rsqrt_(input: Tensor) -> Tensor: ...
def scaled_modified_bessel_k0(input: Tensor) -> Tensor: ...
def scaled_modified_bessel_k1(input: Tensor) -> Tensor: ...
def scatter(input: Tensor, dim: builtins.int, index: Tensor, src: Tensor | Number, *, reduce: str | None = ..., inplace: builtins.bool = ..., axis: builtins.int = ..., value: Tensor | Number = ...) -> Tensor: ...
def scatter_(input: Tensor, dim: builtins.int, index: Tensor, src: Tensor | Number, *, reduce: str | None = ..., inplace: builtins.bool = ..., axis: builtins.int = ..., value: Tensor | Number = ...) -> Tensor: ...
def scatter_add(input: Tensor, dim: builtins.int, index: Tensor, src: Tensor, *, axis: builtins.int = ...) -> Tensor: ...
def scatter_add_(input: Tensor, dim: builtins.int, index: Tensor, src: Tensor, *, axis: builtins.int = ...) -> Tensor: ...
def scatter_reduce(input: Tensor, dim: builtins.int, index: Tensor, src: Tensor, reduce: str, *, include_self: builtins.bool = ..., axis: builtins.int = ...) -> Tensor: ...
def scatter_reduce_(input: Tensor, dim: builtins.int, index: Tensor, src: Tensor, reduce: str, *, include_self: builtins.bool = ..., axis: builtins.int = ...) -> Tensor: ...
def select(input: Tensor, dim: builtins.int, index: builtins.int, *, axis: builtins.int = ...) -> Tensor: ...
def select_scatter(input: Tensor, src: Tensor, dim: builtins.int, index: builtins.int, *, axis: builtins.int = ...) -> Tensor: ...
def selu(input: Tensor, inplace: builtins.bool = False) -> Tensor: ...
def selu_(input: Tensor, inplace: builtins.bool = False) -> Tensor: ...
def sgn_(input: Tensor) -> Tensor: ...
short = _methods_to_int16
def sigmoid(input: Tensor) -> Tensor: ...
def sigmoid_(input: Tensor) -> Tensor: ...
def sign(input: Tensor) -> Tensor: ...
def sign_(input: Tensor) -> Tensor: ...
def silu(input: Tensor, inplace: builtins.bool = False) -> Tensor: ...
def sin(input: Tensor) -> Tensor: ...
def sin_(input: Tensor) -> Tensor: ...
def sinc_(input: Tensor) -> Tensor: ...
def sinh(input: Tensor) -> Tensor: ...
def sinh_(input: Tensor) -> Tensor: ...
def size(self: Tensor, dim: builtins.int | None = ..., *, axis: builtins.int | None = ...) -> Any: ...
def slice_scatter(input: Tensor, src: Tensor, dim: builtins.int = ..., start: builtins.int | None = ..., end: builtins.int | None = ..., step: builtins.int = ..., *, axis: builtins.int = ...) -> Tensor: ...
def softmax(input: Tensor, dim: builtins.int | None = ..., dtype: DTypeLike | None = ..., *, axis: builtins.int | None = ...) -> Tensor: ...
def softmin(input: Tensor, dim: builtins.int | None = ..., dtype: DTypeLike | None = ..., *, axis: builtins.int | None = ...) -> Tensor: ...
def softplus(input: Tensor, beta: builtins.float = 1.0, threshold: builtins.float = 20.0) -> Tensor: ...
def softshrink(input: Tensor, lambd: builtins.float = 0.5, inplace: builtins.bool = False, *, alpha: builtins.float = ...) -> Tensor: ...
def softsign(input: Tensor, inplace: builtins.bool = False) -> Tensor: ...
def sort(input: Tensor, dim: builtins.int = ..., descending: builtins.bool = ..., stable: builtins.bool = ..., *, axis: builtins.int = ...) -> Any: ...
def sparse_softmax_cross_entropy(labels: Tensor, logits: Tensor, *, input: Tensor = ..., target: Tensor = ..., label: Tensor = ..., prediction: Tensor = ...) -> Tensor: ...
def spherical_bessel_j0(input: Tensor) -> Tensor: ...
def split(input: Tensor, split_size_or_sections: builtins.int | Sequence[builtins.int], dim: builtins.int = ..., *, axis: builtins.int = ...) -> tuple[Tensor, ...]: ...
def split_with_sizes(input: Tensor, split_sizes: Sequence[builtins.int], dim: builtins.int = ..., *, axis: builtins.int = ...) -> tuple[Tensor, ...]: ...
def split_with_sizes_copy(input: Tensor, split_sizes: Sequence[builtins.int], dim: builtins.int = ..., *, axis: builtins.int = ...) -> tuple[Tensor, ...]: ...
def sqrt(input: Tensor) -> Tensor: ...
def sqrt_(input: Tensor) -> Tensor: ...
def square(input: Tensor) -> Tensor: ...
def square_(input: Tensor) -> Tensor: ...
def square_relu(input: Tensor) -> Tensor: ...
def squeeze(input: Tensor, dim: DimLike = ..., *, axis: DimLike = ...) -> Tensor: ...
def stack(tensors: Sequence[Tensor], dim: builtins.int = ..., *, axis: builtins.int = ...) -> Tensor: ...
def std(input: Tensor, dim: DimLike = ..., unbiased: builtins.bool | None = ..., keepdim: builtins.bool | None = ..., *, correction: builtins.int | None = ..., axis: DimLike = ..., keepdims: builtins.bool | None = ...) -> Tensor: ...
def std_mean(input: Tensor, dim: DimLike = ..., unbiased: builtins.bool | None = ..., keepdim: builtins.bool = ..., *, correction: builtins.int | None = ..., axis: DimLike = ..., keepdims: builtins.bool = ...) -> tuple[Tensor, Tensor]: ...
def stride(self: Tensor, dim: builtins.int | None = ..., *, axis: builtins.int | None = ...) -> Any: ...
def sub_(input: TensorLike, other: TensorLike, *, alpha: Number = ..., inplace: builtins.bool = ..., out: Tensor | None = ...) -> Tensor: ...
subtract = _arithmetic_sub
def subtract_(input: TensorLike, other: TensorLike, *, alpha: Number = ..., inplace: builtins.bool = ..., out: Tensor | None = ...) -> Tensor: ...
def sum(input: Tensor, dim: DimLike = ..., keepdim: builtins.bool = ..., *, dtype: DTypeLike | None = ..., axis: DimLike = ..., keepdims: builtins.bool = ...) -> Tensor: ...
svd = _matrices_svd_of
swapaxes_ = _methods_transpose_
swapdims_ = _methods_transpose_
def take_along_dim(input: Tensor, indices: Tensor, dim: builtins.int | None = ..., *, axis: builtins.int | None = ...) -> Tensor: ...
def tan(input: Tensor) -> Tensor: ...
def tan_(input: Tensor) -> Tensor: ...
def tanh(input: Tensor) -> Tensor: ...
def tanh_(input: Tensor) -> Tensor: ...
def tanhshrink(input: Tensor) -> Tensor: ...
def tensor_split(input: Tensor, indices_or_sections: Sections | None = ..., dim: builtins.int = ..., *, indices: Sections | None = ..., sections: Sections | None = ..., axis: builtins.int = ...) -> tuple[Tensor, ...]: ...
def threshold(input: Tensor, threshold: builtins.float, value: Number, inplace: builtins.bool = False) -> Tensor: ...
def threshold_(input: Tensor, threshold: builtins.float, value: Number, inplace: builtins.bool = False) -> Tensor: ...
def topk(input: Tensor, k: builtins.int, dim: builtins.int | None = ..., largest: builtins.bool = ..., sorted: builtins.bool = ..., *, axis: builtins.int | None = ...) -> Any: ...
def trapezoid(y: Tensor, x: Tensor | None = ..., *, dx: builtins.float | None = ..., dim: builtins.int = ..., axis: builtins.int = ...) -> Tensor: ...
def trapz(y: Tensor, x: Tensor | None = ..., *, dx: builtins.float | None = ..., dim: builtins.int = ..., axis: builtins.int = ...) -> Tensor: ...
def tril_(input: Tensor, diagonal: builtins.int = ...) -> Tensor: ...
def triu_(input: Tensor, diagonal: builtins.int = ...) -> Tensor: ...
true_divide = _arithmetic_div
def true_divide_(input: TensorLike, other: TensorLike, *, rounding_mode: str | None = ...) -> Tensor: ...
def trunc(input: Tensor) -> Tensor: ...
def trunc_(input: Tensor) -> Tensor: ...
def unbind(input: Tensor, dim: builtins.int = ..., *, axis: builtins.int = ...) -> tuple[Tensor, ...]: ...
def unbind_copy(input: Tensor, dim: builtins.int = ..., *, axis: builtins.int = ...) -> tuple[Tensor, ...]: ...
def unflatten(input: Tensor, dim: builtins.int, sizes: Sequence[builtins.int] | None = ..., *, shape: Sequence[builtins.int] | None = ..., axis: builtins.int = ...) -> Tensor: ...
def unique(input: Tensor, sorted: builtins.bool = ..., return_inverse: builtins.bool = ..., return_counts: builtins.bool = ..., dtype: DTypeLike | None = ..., dim: builtins.int | None = ..., *, axis: builtins.int | None = ...) -> Any: ...
def unique_consecutive(input: Tensor, return_inverse: builtins.bool = ..., return_counts: builtins.bool = ..., dim: builtins.int | None = ..., *, axis: builtins.int | None = ...) -> object: ...
def unsqueeze(input: Tensor, dim: builtins.int, *, axis: builtins.int = ...) -> Tensor: ...
def var(input: Tensor, dim: DimLike = ..., unbiased: builtins.bool | None = ..., keepdim: builtins.bool | None = ..., *, correction: builtins.int | None = ..., axis: DimLike = ..., keepdims: builtins.bool | None = ...) -> Tensor: ...
def var_mean(input: Tensor, dim: DimLike = ..., unbiased: builtins.bool | None = ..., keepdim: builtins.bool = ..., *, correction: builtins.int | None = ..., axis: DimLike = ..., keepdims: builtins.bool = ...) -> tuple[Tensor, Tensor]: ...
def vecdot(x: Tensor, y: Tensor, *, dim: builtins.int = ..., axis: builtins.int = ...) -> Tensor: ...
def vector_norm(x: Tensor, ord: builtins.float | str = ..., dim: DimLike = ..., keepdim: builtins.bool = ..., *, dtype: DTypeLike | None = ..., axis: DimLike = ..., keepdims: builtins.bool = ...) -> Tensor: ...
vector_outer = _products_outer
def xlogy_(input: TensorLike, other: TensorLike) -> Tensor: ...
