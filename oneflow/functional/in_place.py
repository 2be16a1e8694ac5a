"""`flow.f_(x, ...)`: functions that write their result into their first argument."""

from __future__ import annotations

from oneflow.functional import arithmetic, elementwise, nn_activation
from oneflow.functional.searching import index_add
from oneflow.tensor.inplace import in_place
from oneflow.tensor.methods import normal_, zero_

ceil_ = in_place(elementwise.ceil)
clamp_ = in_place(elementwise.clamp)
clamp_max_ = in_place(elementwise.clamp_max)
clamp_min_ = in_place(elementwise.clamp_min)
clip_ = in_place(elementwise.clip)
div_ = in_place(arithmetic.div)
floor_ = in_place(elementwise.floor)
frac_ = in_place(elementwise.frac)
gt_ = in_place(arithmetic.gt)
index_add_ = in_place(index_add)
lerp_ = in_place(arithmetic.lerp)
masked_fill_ = in_place(elementwise.masked_fill)
relu_ = in_place(nn_activation.relu)
round_ = in_place(elementwise.round)
sin_ = in_place(elementwise.sin)

__all__ = ["normal_", "zero_"]
