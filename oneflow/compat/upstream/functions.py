"""Functions that only upstream's own code calls: the public table offers them as `flow._C`."""

from __future__ import annotations

from collections.abc import Sequence

from oneflow.core.dispatch import current_mode
from oneflow.core.dtype import DTypeLike, int8
from oneflow.core.errors import ArgumentError, ShapeError
from oneflow.core.operand import Number, TensorLike
from oneflow.core.placement import Placement
from oneflow.core.sbp import SbpLike, all_broadcast
from oneflow.functional import properties
from oneflow.functional.arithmetic import add, div, mul
from oneflow.functional.concat_split import split
from oneflow.functional.creation import arange, ones
from oneflow.functional.dims import one_dim
from oneflow.functional.elementwise import clone, pick
from oneflow.functional.gather_scatter import as_index
from oneflow.functional.gather_scatter import gather as gather_along
from oneflow.functional.nn import layers as nn_layers
from oneflow.functional.nn.activation import dropout, fast_gelu, softmax
from oneflow.functional.random_state import Generator
from oneflow.functional.shaping import reshape, tril
from oneflow.functional.sort_and_search import argsort
from oneflow.ops import unary
from oneflow.ops.activation import gelu
from oneflow.ops.depend import depend as wait_for
from oneflow.ops.gather import gather as op
from oneflow.tensor.creation_like import Place
from oneflow.tensor.tensor import Tensor


def gather(x: Tensor, indices: Tensor, axis: int) -> Tensor:
    """The slices of dim `axis` at `indices`, whose dims take the place of `axis`."""
    return op(x, as_index(indices), dim=axis % x.ndim)


def bias_add(x: Tensor, bias: Tensor, axis: int = 1) -> Tensor:
    """x + bias, the bias lying along `axis`."""
    at = axis % x.ndim
    return add(x, reshape(bias, tuple(-1 if i == at else 1 for i in range(x.ndim))))


def depend(input: Tensor, depends: Tensor | Sequence[Tensor]) -> Tensor:
    """Return `input`; in a graph readers of the result run after the ops that make `depends`."""
    if current_mode().has_memory:
        return input
    for other in [depends] if isinstance(depends, Tensor) else depends:
        input = wait_for(input, other)
    return input


def identity(x: Tensor) -> Tensor:
    """The same values as a new node."""
    return clone(x)


def amp_white_identity(x: Tensor) -> Tensor:
    """The same values; a graph in mixed precision makes them in half precision."""
    return unary.amp_white_identity(x)


def amp_black_identity(x: Tensor) -> Tensor:
    """The same values; a graph in mixed precision makes them in float32."""
    return unary.amp_black_identity(x)


def host_scalar_add_by_tensor(x: Tensor, scalar: Tensor) -> Tensor:
    """x + scalar."""
    return add(x, scalar)


def trunc_divide(x: TensorLike, y: TensorLike) -> Tensor:
    """x / y, rounded toward zero."""
    return div(x, y, rounding_mode="trunc")


def layer_norm(x: Tensor, begin_norm_axis: int, begin_params_axis: int, epsilon: float) -> Tensor:
    """Mean 0 and variance 1 over the dims from begin_norm_axis on."""
    return nn_layers.layer_norm(x, x.meta.shape[begin_norm_axis % x.ndim :], eps=epsilon)


def layer_norm_affine(
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    begin_norm_axis: int,
    begin_params_axis: int,
    epsilon: float,
) -> Tensor:
    """`layer_norm`, scaled by gamma and moved by beta."""
    return nn_layers.layer_norm(x, x.meta.shape[begin_norm_axis % x.ndim :], gamma, beta, epsilon)


def rms_norm(
    x: Tensor, weight: Tensor | None, normalized_shape: int | Sequence[int], epsilon: float = 1e-6
) -> Tensor:
    """Divided by the root of the mean square over the last dims."""
    return nn_layers.rms_norm(x, normalized_shape, weight, epsilon)


def gelu_with_approximate(x: Tensor, approximate: str = "none") -> Tensor:
    """`gelu`."""
    return gelu(x, approximate=approximate)


def sparse_cross_entropy(prediction: Tensor, label: Tensor, depth: int = 0) -> Tensor:
    """-log(prediction[label]) over the last dim, per sample."""
    rows = reshape(prediction, (-1, prediction.meta.shape[-1]))
    return reshape(
        unary.neg(unary.log(gather_along(rows, 1, reshape(label, (-1, 1))))), label.meta.shape
    )


def slice(
    x: Tensor,
    start: Sequence[int],
    stop: Sequence[int],
    step: Sequence[int],
    enable_view_slice: bool | None = None,
) -> Tensor:
    """x[start[0]:stop[0]:step[0], ...]; positions are not counted from the end."""
    return properties.slice(x, _bounds("slice", x, start, stop, step))


def _bounds(
    who: str, x: Tensor, start: Sequence[int], stop: Sequence[int], step: Sequence[int]
) -> list[tuple[int, int, int]]:
    """A (start, stop, step) for each dim."""
    if not len(start) == len(stop) == len(step) == x.ndim:
        raise ShapeError(
            f"{who}: {x.meta} needs {x.ndim} starts, stops and steps, got {list(start)}, "
            f"{list(stop)} and {list(step)}"
        )
    for first, last, by in zip(start, stop, step, strict=True):
        if not 0 <= first <= last or by < 1:
            raise ArgumentError(
                f"{who}: 0 <= start <= stop and step >= 1 are wanted, got {first}, {last} and {by}"
            )
    return list(zip(start, stop, step, strict=True))


def slice_update(
    ref: Tensor,
    value: Tensor,
    start: Sequence[int],
    stop: Sequence[int],
    step: Sequence[int],
    inplace: bool = False,
) -> Tensor:
    """A copy of `ref` (or `ref` itself) with `value` written over a slice."""
    bounds = _bounds("slice_update", ref, start, stop, step)
    target = ref if inplace else clone(ref)
    return properties.slice_update(target, value, bounds)


def split_like(x: Tensor, like: Sequence[Tensor], axis: int) -> tuple[Tensor, ...]:
    """Parts of the sizes that the tensors of `like` have along `axis`."""
    at = one_dim(axis, x.ndim, "split_like")
    for t in like:
        others = [t.meta.shape[:at] + t.meta.shape[at + 1 :] for t in (x, t)]
        if t.ndim != x.ndim or others[0] != others[1]:
            raise ShapeError(f"split_like: {t.meta} and {x.meta} differ in more than dim {at}")
    return split(x, [t.meta.shape[at] for t in like], at)


def arg_sort(input: Tensor, direction: str = "ASCENDING") -> Tensor:
    """The places of the elements along the last dim in ascending or descending order."""
    if direction not in ("ASCENDING", "DESCENDING"):
        raise ArgumentError(
            f"arg_sort: direction must be ASCENDING or DESCENDING, got {direction!r}"
        )
    return argsort(input, -1, direction == "DESCENDING")


def group_norm(
    x: Tensor,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    affine: bool = True,
    num_groups: int = 1,
    epsilon: float = 1e-5,
) -> Tensor:
    """Mean 0 and variance 1 over groups of channels; affine: scaled by gamma and moved by beta."""
    weight, bias = (gamma, beta) if affine else (None, None)
    return nn_layers.group_norm(x, num_groups, weight, bias, epsilon)


def global_arange(
    start: Number | Tensor,
    end: Number | Tensor | None = None,
    step: Number | Tensor = 1,
    *,
    dtype: DTypeLike | None = None,
    placement: Placement | None = None,
    sbp: SbpLike | None = None,
) -> Tensor:
    """`arange` on a placement."""
    return arange(start, end, step, dtype=dtype, placement=placement, sbp=sbp)


# ---- fused upstream, compositions here: the compiler fuses what is worth it ----------------------


def fused_bias_add_gelu(a: Tensor, b: Tensor, *, axis: int) -> Tensor:
    """gelu(a + b), b lying along `axis`."""
    return gelu(bias_add(a, b, axis))


def fused_bias_add_dropout(
    a: Tensor, b: Tensor, *, p: float = 0.5, axis: int, generator: Generator | None = None
) -> Tensor:
    """dropout(a + b), b lying along `axis`."""
    return dropout(bias_add(a, b, axis), p, generator=generator)


def fused_fast_gelu_mul(x: Tensor, multiplier: Tensor) -> Tensor:
    """fast_gelu(x) * multiplier."""
    return mul(fast_gelu(x), multiplier)


def fused_scale_mask_softmax(
    x: Tensor, mask: Tensor, *, fill_value: float = 0.0, scale: float = 1.0
) -> Tensor:
    """softmax over the last dim of scale * x where mask is true, of fill_value elsewhere."""
    return softmax(pick(mask, mul(x, scale), fill_value), -1)


def fused_scale_mask_softmax_dropout(
    x: Tensor,
    mask: Tensor,
    *,
    fill_value: float = 0.0,
    scale: float = 1.0,
    p: float = 0.5,
    training: bool = True,
    generator: Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """(dropout(y), y) with y of `fused_scale_mask_softmax`."""
    y = fused_scale_mask_softmax(x, mask, fill_value=fill_value, scale=scale)
    return dropout(y, p, training, generator=generator), y


def fused_scale_tril_softmax_mask_scale(
    a: Tensor,
    *,
    p: float = 0.5,
    diagonal: int = 0,
    tril_scale_value: float = 1.0,
    tril_fill_value: float = 0.0,
    generator: Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """(dropout(y), y) with y the softmax over the last dim of tril_scale_value * a below a
    diagonal, tril_fill_value above.
    """
    place: Place = {"device": a._device}
    if a._placement is not None:
        place = {"placement": a._placement, "sbp": all_broadcast(a._placement.ndim)}
    below = tril(ones(a.meta.shape[-2:], dtype=int8, **place), diagonal)
    y = fused_scale_mask_softmax(a, below, fill_value=tril_fill_value, scale=tril_scale_value)
    return dropout(y, p, generator=generator), y
