"""Things to do with parameters and gradients."""

from oneflow.nn.utils import fusion as fusion
from oneflow.nn.utils import memory_format as memory_format
from oneflow.nn.utils import parametrizations as parametrizations
from oneflow.nn.utils import parametrize as parametrize
from oneflow.nn.utils import prune as prune
from oneflow.nn.utils import rnn as rnn
from oneflow.nn.utils import stateless as stateless
from oneflow.nn.utils.clip_grad import (
    clip_grad_norm,
    clip_grad_norm_,
    clip_grad_value_,
    clip_grads_with_norm_,
    get_total_norm,
)
from oneflow.nn.utils.convert_parameters import parameters_to_vector, vector_to_parameters
from oneflow.nn.utils.fusion import (
    fuse_conv_bn_eval,
    fuse_conv_bn_weights,
    fuse_linear_bn_eval,
    fuse_linear_bn_weights,
)
from oneflow.nn.utils.memory_format import (
    convert_conv2d_weight_memory_format,
    convert_conv3d_weight_memory_format,
)
from oneflow.nn.utils.parameters_grouping import ContiguousParamsGroup
from oneflow.nn.utils.skip_init import skip_init
from oneflow.nn.utils.spectral_norm import remove_spectral_norm, spectral_norm
from oneflow.nn.utils.weight_norm import remove_weight_norm, weight_norm
from oneflow.surfaces import accept_paths

__all__ = [
    "ContiguousParamsGroup",
    "clip_grad_norm",
    "clip_grad_norm_",
    "clip_grad_value_",
    "clip_grads_with_norm_",
    "convert_conv2d_weight_memory_format",
    "convert_conv3d_weight_memory_format",
    "fuse_conv_bn_eval",
    "fuse_conv_bn_weights",
    "fuse_linear_bn_eval",
    "fuse_linear_bn_weights",
    "fusion",
    "get_total_norm",
    "memory_format",
    "parameters_to_vector",
    "parametrizations",
    "parametrize",
    "prune",
    "remove_spectral_norm",
    "remove_weight_norm",
    "rnn",
    "skip_init",
    "spectral_norm",
    "stateless",
    "vector_to_parameters",
    "weight_norm",
]


accept_paths(__name__)
