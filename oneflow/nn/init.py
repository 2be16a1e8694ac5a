"""`nn.init`: first values of parameters."""

from __future__ import annotations

from oneflow.functional.initial import (
    _calculate_fan_in_and_fan_out,
    calculate_gain,
    constant_,
    dirac_,
    eye_,
    fans,
    kaiming_normal_,
    kaiming_uniform_,
    normal_,
    ones_,
    orthogonal_,
    trunc_normal_,
    uniform_,
    xavier_normal_,
    xavier_uniform_,
    zeros_,
)
from oneflow.surfaces import accept_paths

__all__ = [
    "_calculate_fan_in_and_fan_out",
    "calculate_gain",
    "constant_",
    "dirac_",
    "eye_",
    "fans",
    "kaiming_normal_",
    "kaiming_uniform_",
    "normal_",
    "ones_",
    "orthogonal_",
    "trunc_normal_",
    "uniform_",
    "xavier_normal_",
    "xavier_uniform_",
    "zeros_",
]

accept_paths(__name__)
