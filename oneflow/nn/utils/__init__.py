"""Things to do with parameters and gradients."""

from oneflow.nn.utils import parametrizations as parametrizations
from oneflow.nn.utils import parametrize as parametrize
from oneflow.nn.utils import prune as prune
from oneflow.nn.utils import rnn as rnn
from oneflow.nn.utils.clip_grad import (
    clip_grad_norm,
    clip_grad_norm_,
    clip_grad_value_,
    clip_grads_with_norm_,
    get_total_norm,
)
from oneflow.nn.utils.convert_parameters import parameters_to_vector, vector_to_parameters
from oneflow.nn.utils.parameters_grouping import ContiguousParamsGroup
from oneflow.nn.utils.skip_init import skip_init
from oneflow.nn.utils.weight_norm import remove_weight_norm, weight_norm
from oneflow.surfaces import accept_paths

__all__ = [
    "ContiguousParamsGroup",
    "clip_grad_norm",
    "clip_grad_norm_",
    "clip_grad_value_",
    "clip_grads_with_norm_",
    "get_total_norm",
    "parameters_to_vector",
    "parametrizations",
    "parametrize",
    "prune",
    "remove_weight_norm",
    "rnn",
    "skip_init",
    "vector_to_parameters",
    "weight_norm",
]


accept_paths(__name__)
