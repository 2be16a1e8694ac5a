"""Type stub made from the public table (oneflow/api.py) by docs/stubs.py."""

from oneflow.core.dtype import DType
from oneflow.functional.elementwise import square_relu as square_relu
from oneflow.functional.nn_activation import celu as celu
from oneflow.functional.nn_activation import dropout as dropout
from oneflow.functional.nn_activation import dropout1d as dropout1d
from oneflow.functional.nn_activation import dropout2d as dropout2d
from oneflow.functional.nn_activation import dropout3d as dropout3d
from oneflow.functional.nn_activation import elu as elu
from oneflow.functional.nn_activation import fast_gelu as fast_gelu
from oneflow.functional.nn_activation import gelu as gelu
from oneflow.functional.nn_activation import hardshrink as hardshrink
from oneflow.functional.nn_activation import hardsigmoid as hardsigmoid
from oneflow.functional.nn_activation import hardswish as hardswish
from oneflow.functional.nn_activation import hardtanh as hardtanh
from oneflow.functional.nn_activation import leaky_relu as leaky_relu
from oneflow.functional.nn_activation import logsigmoid as logsigmoid
from oneflow.functional.nn_activation import mish as mish
from oneflow.functional.nn_activation import quick_gelu as quick_gelu
from oneflow.functional.nn_activation import relu as relu
from oneflow.functional.nn_activation import relu6 as relu6
from oneflow.functional.nn_activation import rrelu as rrelu
from oneflow.functional.nn_activation import selu as selu
from oneflow.functional.nn_activation import silu as silu
from oneflow.functional.nn_activation import softplus as softplus
from oneflow.functional.nn_activation import softshrink as softshrink
from oneflow.functional.nn_activation import softsign as softsign
from oneflow.functional.nn_activation import threshold as threshold
from oneflow.functional.nn_attention import scaled_dot_product_attention as scaled_dot_product_attention
from oneflow.functional.nn_layers import batch_norm as batch_norm
from oneflow.functional.nn_layers import embedding as embedding
from oneflow.functional.nn_layers import group_norm as group_norm
from oneflow.functional.nn_layers import instance_norm as instance_norm
from oneflow.functional.nn_layers import layer_norm as layer_norm
from oneflow.functional.nn_layers import linear as linear
from oneflow.functional.nn_layers import pad as pad
from oneflow.functional.nn_layers import pixel_shuffle as pixel_shuffle
from oneflow.functional.nn_layers import rms_norm as rms_norm
from oneflow.functional.nn_loss import binary_cross_entropy as binary_cross_entropy
from oneflow.functional.nn_loss import binary_cross_entropy_with_logits as binary_cross_entropy_with_logits
from oneflow.functional.nn_loss import cross_entropy as cross_entropy
from oneflow.functional.nn_loss import kl_div as kl_div
from oneflow.functional.nn_loss import l1_loss as l1_loss
from oneflow.functional.nn_loss import margin_ranking_loss as margin_ranking_loss
from oneflow.functional.nn_loss import mse_loss as mse_loss
from oneflow.functional.nn_loss import nll_loss as nll_loss
from oneflow.functional.nn_loss import smooth_l1_loss as smooth_l1_loss
from oneflow.functional.nn_loss import softmax_cross_entropy as softmax_cross_entropy
from oneflow.functional.nn_loss import sparse_softmax_cross_entropy as sparse_softmax_cross_entropy
from oneflow.functional.nn_loss import triplet_margin_loss as triplet_margin_loss
from oneflow.functional.nn_resizing import interpolate as interpolate
from oneflow.functional.nn_resizing import upsample as upsample
from oneflow.functional.nn_windows import adaptive_avg_pool1d as adaptive_avg_pool1d
from oneflow.functional.nn_windows import adaptive_avg_pool2d as adaptive_avg_pool2d
from oneflow.functional.nn_windows import adaptive_avg_pool3d as adaptive_avg_pool3d
from oneflow.functional.nn_windows import avg_pool1d as avg_pool1d
from oneflow.functional.nn_windows import avg_pool2d as avg_pool2d
from oneflow.functional.nn_windows import avg_pool3d as avg_pool3d
from oneflow.functional.nn_windows import conv1d as conv1d
from oneflow.functional.nn_windows import conv2d as conv2d
from oneflow.functional.nn_windows import conv3d as conv3d
from oneflow.functional.nn_windows import conv_transpose1d as conv_transpose1d
from oneflow.functional.nn_windows import conv_transpose2d as conv_transpose2d
from oneflow.functional.nn_windows import conv_transpose3d as conv_transpose3d
from oneflow.functional.nn_windows import max_pool1d as max_pool1d
from oneflow.functional.nn_windows import max_pool2d as max_pool2d
from oneflow.functional.nn_windows import max_pool3d as max_pool3d
from oneflow.functional.random_state import Generator
from oneflow.functional.searching import one_hot as one_hot
from oneflow.tensor.tensor import Tensor
from typing import Any

def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = ..., eps: float = ..., *, axis: Any = ...) -> Tensor: ...
def glu(input: Tensor, dim: int = ..., *, axis: Any = ...) -> Tensor: ...
def gumbel_softmax(logits: Tensor, tau: float = ..., hard: bool = ..., dim: int = ..., *, generator: Generator | None = ..., axis: Any = ...) -> Tensor: ...
def log_softmax(input: Tensor, dim: int | None = ..., dtype: DType | None = ..., *, axis: Any = ...) -> Tensor: ...
def normalize(input: Tensor, p: float = ..., dim: int = ..., eps: float = ..., *, axis: Any = ...) -> Tensor: ...
def pairwise_distance(x1: Tensor, x2: Tensor, p: float = ..., eps: float = ..., keepdim: bool = ..., *, keepdims: Any = ...) -> Tensor: ...
def prelu(input: Tensor, weight: Tensor, *, alpha: Any = ...) -> Tensor: ...
def sigmoid(input: Tensor) -> Tensor: ...
def softmax(input: Tensor, dim: int | None = ..., dtype: DType | None = ..., *, axis: Any = ...) -> Tensor: ...
def softmin(input: Tensor, dim: int | None = ..., dtype: Any = ..., *, axis: Any = ...) -> Tensor: ...
def tanh(input: Tensor) -> Tensor: ...
