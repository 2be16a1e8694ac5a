"""Type stub made from the public table (oneflow/api) by docs/stubs.py."""

from oneflow.compat.torch.native_functions import linear_cross_entropy as linear_cross_entropy
from oneflow.compat.torch.small import grouped_mm as grouped_mm
from oneflow.compat.upstream.functions import depend as depend
from oneflow.core.dtype import DTypeLike
from oneflow.core.operand import Number
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
from oneflow.functional.nn.ctc import ctc_greedy_decoder as ctc_greedy_decoder
from oneflow.functional.nn.ctc import ctc_loss as ctc_loss
from oneflow.functional.nn.layers import batch_norm as batch_norm
from oneflow.functional.nn.layers import bilinear as bilinear
from oneflow.functional.nn.layers import channel_shuffle as channel_shuffle
from oneflow.functional.nn.layers import embedding as embedding
from oneflow.functional.nn.layers import group_norm as group_norm
from oneflow.functional.nn.layers import instance_norm as instance_norm
from oneflow.functional.nn.layers import layer_norm as layer_norm
from oneflow.functional.nn.layers import linear as linear
from oneflow.functional.nn.layers import local_response_norm as local_response_norm
from oneflow.functional.nn.layers import pad as pad
from oneflow.functional.nn.layers import pixel_shuffle as pixel_shuffle
from oneflow.functional.nn.layers import pixel_unshuffle as pixel_unshuffle
from oneflow.functional.nn.layers import rms_norm as rms_norm
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
from oneflow.functional.random_state import Generator
from oneflow.functional.sort_and_search import one_hot as one_hot
from oneflow.functional.statistics import pdist as pdist
from oneflow.functional.strides import fold as fold
from oneflow.functional.strides import unfold as unfold
from oneflow.tensor.tensor import Tensor

def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor: ...
def celu_(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor: ...
def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = ..., eps: float = ..., *, axis: int = ...) -> Tensor: ...
def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor: ...
def elu_(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor: ...
def gelu(input: Tensor, approximate: str = 'none') -> Tensor: ...
def glu(input: Tensor, dim: int = ..., *, axis: int = ...) -> Tensor: ...
def gumbel_softmax(logits: Tensor, tau: float | Tensor = ..., dim: int = ..., hard: bool = ..., *, eps: float = ..., generator: Generator | None = ..., axis: int = ...) -> Tensor: ...
def hardshrink(input: Tensor, lambd: float = 0.5, inplace: bool = False) -> Tensor: ...
def hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor: ...
def hardswish(input: Tensor, inplace: bool = False) -> Tensor: ...
def hardtanh(input: Tensor, min_val: Number = -1.0, max_val: Number = 1.0, inplace: bool = False, *, min_value: Number = ..., max_value: Number = ...) -> Tensor: ...
def hardtanh_(input: Tensor, min_val: Number = -1.0, max_val: Number = 1.0, inplace: bool = False, *, min_value: Number = ..., max_value: Number = ...) -> Tensor: ...
def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False, *, alpha: float = ...) -> Tensor: ...
def leaky_relu_(input: Tensor, negative_slope: float = 0.01, inplace: bool = False, *, alpha: float = ...) -> Tensor: ...
def log_softmax(input: Tensor, dim: int | None = ..., dtype: DTypeLike | None = ..., *, axis: int | None = ...) -> Tensor: ...
def logsigmoid(input: Tensor) -> Tensor: ...
def mish(input: Tensor, inplace: bool = False) -> Tensor: ...
def normalize(input: Tensor, p: float = ..., dim: int = ..., eps: float | Tensor = ..., *, axis: int = ...) -> Tensor: ...
def pairwise_distance(x1: Tensor, x2: Tensor, p: float = ..., eps: float = ..., keepdim: bool = ..., *, keepdims: bool = ...) -> Tensor: ...
def prelu(input: Tensor, weight: Tensor, *, alpha: Tensor = ...) -> Tensor: ...
def quick_gelu(input: Tensor) -> Tensor: ...
def relu(input: Tensor, inplace: bool = False) -> Tensor: ...
def relu6(input: Tensor, inplace: bool = False) -> Tensor: ...
def relu_(input: Tensor, inplace: bool = False) -> Tensor: ...
def rrelu_(input: Tensor, lower: float = ..., upper: float = ..., training: bool = ..., inplace: bool = ...) -> Tensor: ...
def selu(input: Tensor, inplace: bool = False) -> Tensor: ...
def selu_(input: Tensor, inplace: bool = False) -> Tensor: ...
def sigmoid(input: Tensor) -> Tensor: ...
def silu(input: Tensor, inplace: bool = False) -> Tensor: ...
def softmax(input: Tensor, dim: int | None = ..., dtype: DTypeLike | None = ..., *, axis: int | None = ...) -> Tensor: ...
def softmin(input: Tensor, dim: int | None = ..., dtype: DTypeLike | None = ..., *, axis: int | None = ...) -> Tensor: ...
def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor: ...
def softshrink(input: Tensor, lambd: float = 0.5, inplace: bool = False, *, alpha: float = ...) -> Tensor: ...
def softsign(input: Tensor, inplace: bool = False) -> Tensor: ...
def sparse_softmax_cross_entropy(labels: Tensor, logits: Tensor, *, input: Tensor = ..., target: Tensor = ..., label: Tensor = ..., prediction: Tensor = ...) -> Tensor: ...
def square_relu(input: Tensor) -> Tensor: ...
def tanh(input: Tensor) -> Tensor: ...
def tanhshrink(input: Tensor) -> Tensor: ...
def threshold(input: Tensor, threshold: float, value: Number, inplace: bool = False) -> Tensor: ...
def threshold_(input: Tensor, threshold: float, value: Number, inplace: bool = False) -> Tensor: ...
